// How to use a grace period: how far to decode before the pipeline must stop, and for each request,
// whether it finishes, its KV is copied, or its tokens are replayed elsewhere (SpotServe, section
// 4: just-in-time arrangement; the choice per request is an addition).
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/spot/profile.h"

namespace millrace::plan::spot {

// As published: queried between batches for the number of steps that the next batch may run.
// `elapsed_s` counts from the notice.
struct PublishedArrangement {
  double grace_s = 30;
  double migration_s = 0;  // T_mig
  bool preemption = true;  // false: decodes until an expected new machine is ready
  double caution = 1.1;    // factor by which times are lengthened (preemption) or shortened
};

// 0: stop now. `output_tokens`: the batch may run to its end. `first`: t1 of one request.
int PublishedSteps(const PublishedArrangement& arrangement, double elapsed_s,
                   const ExecutionTime& first, const ExecutionTime& batch, int output_tokens);

// What to do with one request of a machine under notice.
enum class Recovery : uint8_t { kFinish, kCopy, kReplay };

struct LiveRequest {
  int64_t id = 0;
  double finish_s = 0;         // time to its last token if it stays: expected,
  double latest_finish_s = 0;  // and at most
  int64_t kv_bytes = 0;        // that must leave the machine
  double replay_s = 0;         // to recompute its tokens elsewhere, which a copy saves
  double waiting_s = 0;        // since it arrived; used for ageing
};

struct RecoveryBudget {
  double seconds = 0;       // until the deadline, without the margins
  double bytes_per_s = 0;   // measured bandwidth of the link, shared by all copies
  double ageing_per_s = 0;  // weights saved work by 1 + this * waiting_s
  // A request goes on while it is copied, so a copy is never worse than a replay.
  bool copies_while_running = false;
};

struct RecoveryPlan {
  std::vector<Recovery> choice;  // by request, as given
  std::vector<size_t> copies;    // indices of the copied requests, in sending order
  int64_t copied_bytes = 0;
  double replayed_s = 0;  // work done twice
};

// Requests that finish in time at the latest do so, and could still be copied alone if they did
// not; and so do those that are expected to finish before the last moment at which the KV of all
// can still be copied (the paper's S_t: the most steps that end before T- minus T_mig). The others
// are copied in the order of work saved per byte, while the link can carry them before the
// deadline. A request is replayed if its copy takes longer than the replay or no longer fits.
//
// Ask again as time passes: a request that was expected to finish and did not can still be copied.
RecoveryPlan ChooseRecovery(std::span<const LiveRequest> requests, const RecoveryBudget& budget);

}  // namespace millrace::plan::spot
