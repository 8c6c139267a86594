// BlameLedger: which requests may be what ends their workers. A dead worker does not say why, so a
// request is blamed only for the same work that ended unlike workers, the last time by itself.
//
// A request whose work ended `deaths_max` times is a suspect. Of all suspects, one at a time is
// tried; the others wait. If its pipeline ends again, the request fails. If it gets a token, it is
// cleared. So losses that come close together fail no request, and one that kills its workers
// cannot take all of them.
//
// A loss that only a peer has reported is held back: it counts once the loss of that worker is
// certain. Only requests that have lost a pipeline have an entry here.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

// Why a pipeline is lost. kNoFault: its requests cannot be the cause. kDeath: a worker is gone or a
// step has failed, and a request that ran there may be the cause. kSuspicion: a worker reports that
// another one is gone.
enum class PipelineEnd : uint8_t { kNoFault, kDeath, kSuspicion };

struct PipelineLoss {
  PipelineEnd end = PipelineEnd::kNoFault;
  std::optional<WorkerId> suspect = {};  // kSuspicion: the worker that a peer reports as gone
  std::string worker = {};               // kDeath: the name of the worker that is gone or failed
};

class BlameLedger {
 public:
  // A request that ends one worker again and again fails after so many times by itself.
  static constexpr int kDeathsAloneMax = 3;

  // `step_tokens_max`: the most tokens of one step. Works that begin further apart are not the
  // same.
  BlameLedger(int deaths_max, int64_t step_tokens_max)
      : deaths_max_(deaths_max), step_tokens_max_(step_tokens_max) {}

  // A pipeline has ended that had the request. `ran_from`: how many of the request's tokens it had
  // computed; unset: the request was in none of its steps.
  void PipelineEnded(RequestId id, const PipelineLoss& loss, std::optional<int64_t> ran_from);
  // The loss of the worker is certain: counts a death for the requests that ran on it when a peer
  // reported this. Returns them in order.
  std::vector<RequestId> CountSuspectedOf(WorkerId lost, const std::string& name);

  // Whether a pipeline may get the request now: it is no suspect, or no other one is tried.
  bool MayStart(RequestId id) const;
  void Started(RequestId id);
  // It got a token, or has ended. True: another suspect may be tried now.
  bool Cleared(RequestId id);

  // Set if the request must fail: how many pipelines ended while they did the same work of it.
  std::optional<int> MustFail(RequestId id) const;

  size_t size() const { return entries_.size(); }

 private:
  struct Suspicion {
    WorkerId worker;
    int64_t from = 0;
    bool alone = false;
  };
  struct Entry {
    int deaths = 0;  // at the same work
    int deaths_alone = 0;
    int64_t from = 0;               // where that work begins, in tokens
    std::set<std::string> workers;  // that ended at it
    std::optional<Suspicion> suspicion;
  };

  void CountDeath(Entry& entry, const std::string& worker, int64_t from, bool alone) const;
  bool IsSuspect(RequestId id) const;

  const int deaths_max_;
  const int64_t step_tokens_max_;
  std::map<RequestId, Entry> entries_;
  std::optional<RequestId> tried_;  // the suspect that a pipeline has
};

}  // namespace millrace::cluster
