// BlameLedger: which requests may be what kills their pipelines. A request that has lost as many
// pipelines as the limit allows, without a token in between, fails instead of killing another one.
//
// A loss that only a peer has reported is held back: it counts once the loss of that worker is
// certain. Only requests that have lost a pipeline have an entry here, so tokens cost nothing.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/ids.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

// Why a pipeline is lost. kNoFault: its requests cannot be the cause. kDeath: a worker is gone or a
// step has failed, and a request that ran there may be the cause. kSuspicion: a worker reports that
// another one is gone.
enum class PipelineEnd : uint8_t { kNoFault, kDeath, kSuspicion };

class BlameLedger {
 public:
  // A request fails after `deaths_max` losses without a token in between.
  explicit BlameLedger(int deaths_max) : deaths_max_(deaths_max) {}

  // A pipeline has ended that had the request. `ran`: the request was in its steps. `delivered`:
  // the request's tokens so far. `suspect`: the worker that a peer reports as gone.
  void PipelineEnded(RequestId id, PipelineEnd end, bool ran, int64_t delivered,
                     std::optional<WorkerId> suspect);

  // The loss of the worker is certain. Returns the requests that ran on it when a peer reported
  // this, in order; the caller counts a death for each.
  std::vector<RequestId> TakeSuspectedOf(WorkerId lost);
  void CountDeath(RequestId id, int64_t delivered);

  // Set if the request must fail: how many pipelines were lost under it.
  std::optional<int> MustFail(RequestId id) const;

  void Forget(RequestId id);
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    int deaths = 0;                   // since its last token
    int64_t delivered_at_death = 0;   // tokens at the last of them
    std::optional<WorkerId> suspect;  // reported lost by a peer while the request ran on it
  };

  const int deaths_max_;
  std::map<RequestId, Entry> entries_;
};

}  // namespace millrace::cluster
