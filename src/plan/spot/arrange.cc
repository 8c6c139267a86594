#include "plan/spot/arrange.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace millrace::plan::spot {

int PublishedSteps(const PublishedArrangement& a, double elapsed_s, const ExecutionTime& first,
                   const ExecutionTime& batch, int output_tokens) {
  const double factor = a.preemption ? a.caution : 1 / a.caution;
  const double slot_s = a.grace_s - (a.preemption ? a.migration_s : -a.migration_s) - elapsed_s;
  if (slot_s <= first.prefill_ms * factor / 1000) return 0;
  const double prefill_s = batch.prefill_ms * factor / 1000;
  const double step_s = batch.step_ms * factor / 1000;
  const double steps = std::floor((slot_s - prefill_s) / step_s) + (a.preemption ? -1 : 1);
  return static_cast<int>(std::clamp<double>(steps, 0, output_tokens));
}

RecoveryPlan ChooseRecovery(std::span<const LiveRequest> requests, const RecoveryBudget& budget) {
  RecoveryPlan plan;
  double all_bytes = 0;
  for (const LiveRequest& r : requests) all_bytes += static_cast<double>(r.kv_bytes);
  const double all_copies_s = budget.bytes_per_s > 0 ? all_bytes / budget.bytes_per_s : INFINITY;
  plan.choice.assign(requests.size(), Recovery::kReplay);
  std::vector<size_t> candidates;
  for (size_t i = 0; i < requests.size(); ++i) {
    const LiveRequest& r = requests[i];
    const bool pays = budget.copies_while_running ||
                      static_cast<double>(r.kv_bytes) < r.replay_s * budget.bytes_per_s;
    const double copy_s =
        budget.bytes_per_s > 0 ? static_cast<double>(r.kv_bytes) / budget.bytes_per_s : 0;
    if (r.latest_finish_s <= budget.seconds - copy_s ||
        r.finish_s <= budget.seconds - all_copies_s) {
      plan.choice[i] = Recovery::kFinish;
    } else if (budget.bytes_per_s > 0 && pays) {
      candidates.push_back(i);
    }
  }
  // Compares without division: a request with nothing to send comes first.
  const auto saved = [&](size_t i) {
    return requests[i].replay_s * (1 + budget.ageing_per_s * requests[i].waiting_s);
  };
  std::stable_sort(candidates.begin(), candidates.end(), [&](size_t a, size_t b) {
    return saved(a) * static_cast<double>(requests[b].kv_bytes) >
           saved(b) * static_cast<double>(requests[a].kv_bytes);
  });
  const double room_bytes = std::max(0.0, budget.seconds) * budget.bytes_per_s;
  for (const size_t i : candidates) {
    if (static_cast<double>(plan.copied_bytes) + requests[i].kv_bytes > room_bytes) continue;
    plan.choice[i] = Recovery::kCopy;
    plan.copied_bytes += requests[i].kv_bytes;
    plan.copies.push_back(i);
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    if (plan.choice[i] == Recovery::kReplay) plan.replayed_s += requests[i].replay_s;
  }
  return plan;
}

}  // namespace millrace::plan::spot
