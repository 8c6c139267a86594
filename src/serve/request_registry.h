// RequestRegistry: the live requests of the front end and the last few that ended, for
// /debug/requests and for draining. Owned by the service; any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "core/ids.h"
#include "core/output.h"

namespace millrace::serve {

inline constexpr size_t kEndedRequestsKept = 256;

// One request of the engine: one prompt of an HTTP request.
struct RegistryEntry {
  RequestId id;
  std::string response_id;  // "cmpl-..."
  std::string external_id;  // x-request-id
  std::string route;
  int prompt_index = 0;
  int prompt_tokens = 0;
  int n = 1;
  bool stream = false;
  Time arrived;
  // Set when it ends:
  std::string finish_reason;
  int generation_tokens = 0;
  std::optional<RequestTimes> times;
};

class RequestRegistry {
 public:
  void Add(RegistryEntry entry);
  void End(RequestId id, std::string reason, int generation_tokens,
           std::optional<RequestTimes> times);

  std::vector<RegistryEntry> Live() const;
  // Live requests first. `name` is the engine's number, the response id or the x-request-id;
  // several requests may share one.
  std::vector<RegistryEntry> Find(const std::string& name) const;
  std::optional<RegistryEntry> Find(RequestId id) const;

  // Count the answers that are being prepared or written, and wait until there are none.
  void Enter();
  void Leave();
  void WaitUntilIdle();

 private:
  mutable Mutex mutex_;
  CondVar idle_;
  std::map<RequestId, RegistryEntry> live_ MR_GUARDED_BY(mutex_);
  std::deque<RegistryEntry> ended_ MR_GUARDED_BY(mutex_);  // newest first
  int inside_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::serve
