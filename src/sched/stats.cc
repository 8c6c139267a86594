// Statistics of schedulers, summed over several.
#include "sched/scheduler.h"

namespace millrace::sched {

SchedulerStats& SchedulerStats::operator+=(const SchedulerStats& other) {
  waiting += other.waiting;
  running += other.running;
  swapped += other.swapped;
  pulling += other.pulling;
  blocks_total += other.blocks_total;
  blocks_free += other.blocks_free;
  blocks_cached += other.blocks_cached;
  blocks_pending += other.blocks_pending;
  blocks_pinned += other.blocks_pinned;
  blocks_reserved += other.blocks_reserved;
  host_blocks_used += other.host_blocks_used;
  tokens_computed += other.tokens_computed;
  tokens_to_come += other.tokens_to_come;
  tokens_promised += other.tokens_promised;
  requests_accepted += other.requests_accepted;
  requests_detached += other.requests_detached;
  preemptions_recompute += other.preemptions_recompute;
  preemptions_swap += other.preemptions_swap;
  prefix_query_tokens += other.prefix_query_tokens;
  prefix_hit_tokens += other.prefix_hit_tokens;
  prompt_tokens += other.prompt_tokens;
  prompt_tokens_recomputed += other.prompt_tokens_recomputed;
  generation_tokens += other.generation_tokens;
  swapped_out_blocks += other.swapped_out_blocks;
  steps += other.steps;
  results_dropped += other.results_dropped;
  copied_blocks += other.copied_blocks;
  for (size_t i = 0; i < std::size(requests_finished); ++i) {
    requests_finished[i] += other.requests_finished[i];
  }
  return *this;
}

SchedulerStats SchedulerStats::CountersOnly() const {
  SchedulerStats counters = *this;
  counters.waiting = counters.running = counters.swapped = counters.pulling =
      counters.blocks_total = counters.blocks_free = counters.blocks_cached =
          counters.blocks_pending = counters.blocks_pinned = counters.blocks_reserved =
              counters.host_blocks_used = 0;
  counters.tokens_computed = counters.tokens_to_come = counters.tokens_promised = 0;
  return counters;
}

}  // namespace millrace::sched
