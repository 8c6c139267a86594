// How to spend a grace period: how far to decode before the pipeline must stop, and what becomes of
// each request: it finishes, its KV is copied, or its tokens are replayed elsewhere (SpotServe,
// section 4: just-in-time arrangement; the choice per request is ours).
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/spot/profile.h"

namespace millrace::plan::spot {

// As published: asked between batches, how many steps the next batch may run. `elapsed_s` counts
// from the notice.
struct PublishedArrangement {
  double grace_s = 30;
  double migration_s = 0;  // T_mig
  bool preemption = true;  // false: a newcomer is awaited, decoding goes on until it is ready
  double caution = 1.1;    // times are taken this much longer (preemption) or shorter
};

// 0: stop now. `output_tokens` when the batch may run to its end. `first`: t1 of one request.
int PublishedSteps(const PublishedArrangement& arrangement, double elapsed_s,
                   const ExecutionTime& first, const ExecutionTime& batch, int output_tokens);

// Ours: asked before every iteration. True when the iteration ends early enough for the migration,
// with its margin, to end by the deadline. Times in seconds on one clock.
bool MayRunStep(double now_s, double step_s, double migration_s, double margin_s,
                double deadline_s);

// What to do with one request of a machine under notice.
enum class Recovery : uint8_t { kFinish, kCopy, kReplay };

struct LiveRequest {
  int64_t id = 0;
  double finish_s = 0;   // to its last token, where it runs now
  int64_t kv_bytes = 0;  // that must leave the machine
  double replay_s = 0;   // to compute its tokens again elsewhere: the work that a copy saves
  double waiting_s = 0;  // since it arrived: ageing
};

struct RecoveryBudget {
  double seconds = 0;       // until the deadline, margins taken off
  double bytes_per_s = 0;   // of the link, measured, shared by all copies
  double ageing_per_s = 0;  // work saved counts 1 + this * waiting_s times
};

struct RecoveryPlan {
  std::vector<Recovery> choice;  // by request, as given
  std::vector<size_t> copies;    // indices of the copied ones, in the order to send
  int64_t copied_bytes = 0;
  double replayed_s = 0;  // work done twice
};

// Whoever finishes in time finishes. The others are copied in the order of work saved per byte,
// while the link can carry them before the deadline; a copy that takes longer than the replay, and
// what no longer fits, is replayed.
RecoveryPlan ChooseRecovery(std::span<const LiveRequest> requests, const RecoveryBudget& budget);

}  // namespace millrace::plan::spot
