// RequestRegistry: the live requests of the front end and the last few that ended, for
// /debug/requests and for draining. Owned by the service; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "core/ids.h"
#include "core/output.h"
#include "serve/http/trace_context.h"

namespace millrace::serve {

inline constexpr size_t kEndedRequestsKept = 256;

// One request of the controller: one prompt of an HTTP request.
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
  struct Asked {
    int max_tokens = 0;
    double temperature = 1, top_p = 1;
  };
  Asked asked;
  std::optional<TraceContext> trace;
  // Set when it ends:
  std::string finish_reason;
  int generation_tokens = 0;
  std::optional<RequestTimes> times;
  std::shared_ptr<const TimeAccount> account;
  // The end of its answer was written; this may precede the end of the request.
  std::optional<Time> delivered;

  // The later of last byte and end of the account. REQUIRES: it has an account.
  Time end() const { return std::max(account->until(), delivered.value_or(arrived)); }
};

class RequestRegistry {
 public:
  // Called for each request when it has ended and its answer is written, on the thread that says
  // so. Before any request is added.
  void OnOver(std::function<void(const RegistryEntry&)> over) { over_ = std::move(over); }

  void Add(RegistryEntry entry);
  void End(RequestId id, std::string reason, int generation_tokens,
           std::optional<RequestTimes> times, std::shared_ptr<const TimeAccount> account = nullptr);
  void Delivered(const std::vector<RequestId>& ids, Time now);

  std::vector<RegistryEntry> Live() const;
  // Those that ended, newest first.
  std::vector<RegistryEntry> Ended() const;
  // Live requests first. `name` is the controller's number, the response id or the x-request-id;
  // several requests may share one.
  std::vector<RegistryEntry> Find(const std::string& name) const;
  std::optional<RegistryEntry> Find(RequestId id) const;

  // Count the answers that are being prepared or written, and wait until there are none.
  void Enter();
  void Leave();
  void WaitUntilIdle();
  // Leaves when it is destroyed, however the work ends.
  class LeaveAtEnd {
   public:
    explicit LeaveAtEnd(RequestRegistry& registry) : registry_(registry) {}
    ~LeaveAtEnd() { registry_.Leave(); }
    LeaveAtEnd(const LeaveAtEnd&) = delete;
    LeaveAtEnd& operator=(const LeaveAtEnd&) = delete;

   private:
    RequestRegistry& registry_;
  };

 private:
  std::function<void(const RegistryEntry&)> over_;
  mutable Mutex mutex_;
  CondVar idle_;
  std::map<RequestId, RegistryEntry> live_ MR_GUARDED_BY(mutex_);
  std::deque<RegistryEntry> ended_ MR_GUARDED_BY(mutex_);  // newest first
  int inside_ MR_GUARDED_BY(mutex_) = 0;
};

}  // namespace millrace::serve
