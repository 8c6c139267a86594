// Which request is preempted when blocks run out (vLLM section 4.5): the last in order, with all
// its sequences (all or nothing), by recompute or by swap, whichever has the lower predicted cost.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

// Waits for blocks that a step in flight will free before it preempts another request. A request
// that is itself the last also waits and keeps its blocks; those before it may still take them.
SchedulerImpl::Grant SchedulerImpl::Obtain(Request& request, int blocks, StepRoom& room) {
  if (!GrowReservation(request, blocks, room)) return Grant::kWait;
  while (kv_.available() < blocks) {
    if (kv_.soon_available() >= blocks || running_.back() == &request) return Grant::kWait;
    Preempt(*running_.back(), request, blocks);
    room.preempted = true;
  }
  return Grant::kGranted;
}

// Only a sequence longer than predicted outgrows its promise. It then gets a larger reservation,
// and the last requests in order are preempted for it.
bool SchedulerImpl::GrowReservation(Request& request, int blocks, StepRoom& room) {
  if (!reservations_.reserves()) return true;
  int held = blocks;
  for (const Sequence& s : request.sequences) held += static_cast<int>(s.table.size());
  if (held <= request.reserved_blocks) return true;
  // A block that sequences share was counted for each of them.
  CollectTables(request);
  held = blocks + kv_.CountDistinct(tables_);
  if (held <= request.reserved_blocks) return true;
  const int n = request.spec.params->n;
  const int before = request.reserved_blocks;
  while (true) {
    reservations_.Release(request);
    if (reservations_.Take(request, (held + n - 1) / n)) return true;
    MR_CHECK(reservations_.Take(request, before / n)) << "the previous reservation must fit again";
    if (running_.back() == &request) return false;
    Preempt(*running_.back(), request, held - before);
    room.preempted = true;
  }
}

void SchedulerImpl::CollectTables(const Request& request) {
  tables_.clear();
  for (const Sequence& s : request.sequences) {
    if (!s.started || !s.live()) continue;
    tables_.push_back(request.state == RequestState::kSwapped ? &s.host_table : &s.table);
  }
}

// The predicted cost of both modes, from the measured rates. Recompute replays the prompt once and
// every output; swap moves every distinct block out and back.
PreemptionRecord SchedulerImpl::Weigh(const Request& victim) {
  const PreemptionCosts& costs = options_.costs;
  PreemptionRecord record{.victim = victim.spec.id};
  int prompt = 0;
  for (const Sequence& s : victim.sequences) {
    if (!s.started || !s.live()) continue;
    prompt = std::max(prompt, std::min(s.computed, victim.prompt_tokens));
    record.tokens_dropped += std::max(0, s.computed - victim.prompt_tokens);
  }
  record.tokens_dropped += prompt;
  record.recompute_cost_s = record.tokens_dropped / costs.prefill_tokens_per_s;
  CollectTables(victim);
  record.blocks_released = kv_.CountDistinct(tables_);
  record.swap_cost_s = 2.0 * record.blocks_released *
                       (static_cast<double>(costs.kv_bytes_per_block) / costs.swap_bytes_per_s +
                        costs.swap_block_overhead_s);
  if (record.blocks_released > kv_.host().available()) {
    record.swap_cost_s = std::numeric_limits<double>::infinity();
  }
  const bool swap_possible = record.swap_cost_s < std::numeric_limits<double>::infinity();
  const bool swap = swap_possible && (options_.preemption == PreemptionMode::kSwap ||
                                      (options_.preemption == PreemptionMode::kAuto &&
                                       record.swap_cost_s < record.recompute_cost_s));
  record.chosen = swap ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
  return record;
}

void SchedulerImpl::Preempt(Request& victim, const Request& beneficiary, int blocks_needed) {
  const int available = kv_.available();
  // They start from the leader's prompt again.
  DropSiblingTables(victim);
  PreemptionRecord record = Weigh(victim);
  record.on_behalf_of = beneficiary.spec.id;
  record.blocks_needed = blocks_needed;
  record.blocks_released += kv_.available() - available;
  record.blocks_available = available;
  for (Sequence& s : victim.sequences) {
    if (s.live()) IndexPrefixes(s);
  }
  StopRunning(victim);
  if (record.chosen == PreemptionMode::kSwap) {
    SwapOut(victim);
    ++stats_.preemptions_swap;
  } else {
    DropKv(victim);
    victim.state = RequestState::kPreempted;
    ++stats_.preemptions_recompute;
  }
  reservations_.Release(victim);
  UpdatePromise(victim);
  victim.verdict = {Verdict::Reason::kPreemptedThisStep};
  ++victim.preemptions;
  Enqueue(victim);
  if (preemptions_.size() == kPreemptionRecordsMax) preemptions_.erase(preemptions_.begin());
  preemptions_.push_back(record);
}

// The token of a step in flight still counts; only its KV does not.
void SchedulerImpl::DropKv(Request& victim) {
  for (Sequence& s : victim.sequences) {
    if (!s.started || !s.live()) continue;
    FreeBlocks(s);
    s.started = false;
    s.computed = 0;
    s.lacking_until = 0;
    s.sent_blocks = 0;
    s.chain.indexed = 0;
    ++s.incarnation;
  }
}

// A step in flight writes its KV before the swap-out of a later step reads it, so its tokens count
// as computed when its result arrives.
void SchedulerImpl::SwapOut(Request& victim) {
  moves_.clear();
  for (Sequence& s : victim.sequences) {
    if (!s.started || !s.live()) continue;
    moves_.push_back({&s.table, &s.host_table, s.in_flight});
    s.lacking_until = 0;
    s.sent_blocks = 0;
  }
  const size_t before = swap_out_.size();
  MR_CHECK(kv_.SwapOut(moves_, swap_out_)) << "the swap pool was counted wrong";
  stats_.swapped_out_blocks += swap_out_.size() - before;
  pulls_.NoteReads(std::span(swap_out_).subspan(before), StepId(next_step_));
  victim.swapped_out_by = StepId(next_step_);
  victim.state = RequestState::kSwapped;
}

std::string PreemptionRecord::Describe() const {
  return fmt::format(
      "request {} preempted by {} for request {}: {} blocks needed, {} available, {} released, {} "
      "tokens to replay; predicted cost: recompute {:.1f} ms, swap {:.1f} ms",
      victim.value(), chosen == PreemptionMode::kSwap ? "swap" : "recompute", on_behalf_of.value(),
      blocks_needed, blocks_available, blocks_released, tokens_dropped, recompute_cost_s * 1e3,
      swap_cost_s * 1e3);
}

}  // namespace millrace::sched
