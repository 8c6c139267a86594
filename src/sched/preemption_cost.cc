#include "sched/preemption_cost.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace millrace::sched {

int DistinctBlocks(const Request& request, kv::KvCache& kv) {
  std::vector<const kv::BlockTable*> tables;
  for (const Sequence& s : request.sequences) {
    if (!s.started || !s.live()) continue;
    tables.push_back(request.state == RequestState::kSwapped ? &s.host_table : &s.table);
  }
  return kv.CountDistinct(tables);
}

PreemptionRecord Weigh(const Request& victim, kv::KvCache& kv, PreemptionMode mode,
                       const PreemptionCosts& costs) {
  PreemptionRecord record{.victim = victim.spec.id};
  int prompt = 0;
  for (const Sequence& s : victim.sequences) {
    if (!s.started || !s.live()) continue;
    prompt = std::max(prompt, std::min(s.computed, victim.prompt_tokens));
    record.tokens_dropped += std::max(0, s.computed - victim.prompt_tokens);
  }
  record.tokens_dropped += prompt;
  record.recompute_cost_s = record.tokens_dropped / costs.prefill_tokens_per_s;
  record.blocks_released = DistinctBlocks(victim, kv);
  record.swap_cost_s = 2.0 * record.blocks_released *
                       (static_cast<double>(costs.kv_bytes_per_block) / costs.swap_bytes_per_s +
                        costs.swap_block_overhead_s);
  if (record.blocks_released > kv.host().available()) {
    record.swap_cost_s = std::numeric_limits<double>::infinity();
  }
  const bool swap_possible = record.swap_cost_s < std::numeric_limits<double>::infinity();
  const bool swap =
      swap_possible &&
      (mode == PreemptionMode::kSwap ||
       (mode == PreemptionMode::kAuto && record.swap_cost_s < record.recompute_cost_s));
  record.chosen = swap ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
  return record;
}

}  // namespace millrace::sched
