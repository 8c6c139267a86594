// Which request is preempted when blocks run out (vLLM section 4.5): the last
// in order, with all its sequences (all or nothing), by recompute or by swap,
// whichever has the lower predicted cost.
#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "sched/preemption_cost.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

// Waits for blocks that a step in flight will free before it preempts another
// request. A request that is itself the last also waits and keeps its blocks;
// those before it may still take them.
SchedulerImpl::Grant SchedulerImpl::Obtain(Request& request, int blocks, StepRoom& room) {
  if (!GrowReservation(request, blocks, room)) return Grant::kWait;
  while (kv_.available() < blocks) {
    if (kv_.soon_available() >= blocks || requests_.running().back() == &request)
      return Grant::kWait;
    Preempt(*requests_.running().back(), request, blocks, room);
  }
  return Grant::kGranted;
}

// Only a sequence longer than predicted outgrows its promise. It then gets a
// larger reservation, and the last requests in order are preempted for it.
bool SchedulerImpl::GrowReservation(Request& request, int blocks, StepRoom& room) {
  if (!reservations_.reserves()) return true;
  int held = blocks;
  for (const Sequence& s : request.sequences) held += static_cast<int>(s.table.size());
  if (held <= request.reserved_blocks) return true;
  // A block that sequences share was counted for each of them.
  held = blocks + DistinctBlocks(request, kv_);
  if (held <= request.reserved_blocks) return true;
  const int n = request.spec.params->n;
  const int before = request.reserved_blocks;
  while (true) {
    reservations_.Release(request);
    if (reservations_.Take(request, (held + n - 1) / n)) return true;
    MR_CHECK(reservations_.Take(request, before / n)) << "the previous reservation must fit again";
    if (requests_.running().back() == &request) return false;
    Preempt(*requests_.running().back(), request, held - before, room);
  }
}

void SchedulerImpl::Preempt(Request& victim, const Request& beneficiary, int blocks_needed,
                            StepRoom& room) {
  accounting_.Settle(victim, room.now);
  victim.account.Enter(TimeCause::kPreemption);
  victim.ahead.ids = {beneficiary.spec.id};
  const int available = kv_.available();
  // They start from the leader's prompt again.
  forks_.DropTables(victim);
  PreemptionRecord record = Weigh(victim, kv_, options_.preemption, options_.costs);
  record.on_behalf_of = beneficiary.spec.id;
  record.blocks_needed = blocks_needed;
  record.blocks_released += kv_.available() - available;
  record.blocks_available = available;
  for (Sequence& s : victim.sequences) {
    if (s.live()) IndexPrefixes(s);
  }
  if (record.chosen == PreemptionMode::kSwap) {
    SwapOut(victim);
    ++stats_.preemptions_swap;
  } else {
    DropKv(kv_, victim);
    ++stats_.preemptions_recompute;
  }
  const bool swapped = record.chosen == PreemptionMode::kSwap;
  requests_.WaitAgain(victim, swapped ? RequestState::kSwapped : RequestState::kPreempted);
  reservations_.Release(victim);
  forks_.UpdatePromise(victim);
  victim.verdict = {Verdict::Reason::kPreemptedThisStep};
  ++victim.preemptions;
  room.preemptions.push_back(record);
}

// A step in flight writes its KV before the swap-out of a later step reads it,
// so its tokens count as computed when its result arrives.
void SchedulerImpl::SwapOut(Request& victim) {
  moves_.clear();
  for (Sequence& s : victim.sequences) {
    if (!s.started || !s.live()) continue;
    moves_.push_back({&s.table, &s.host_table, s.in_flight});
    if (s.offered) s.computed = victim.TotalOf(s) - 1;
    s.offered = false;
    s.lacking_until = 0;
    s.sent_blocks = 0;
  }
  stats_.swapped_out_blocks += builder_.SwapOut(moves_);
  victim.swapped_out_by = ledger_.next();
}

std::string PreemptionRecord::Describe() const {
  return fmt::format(
      "request {} preempted by {} for request {}: {} blocks needed, {} "
      "available, {} released, {} "
      "tokens to replay; predicted cost: recompute {:.1f} ms, swap {:.1f} ms",
      victim.value(), chosen == PreemptionMode::kSwap ? "swap" : "recompute", on_behalf_of.value(),
      blocks_needed, blocks_available, blocks_released, tokens_dropped, recompute_cost_s * 1e3,
      swap_cost_s * 1e3);
}

}  // namespace millrace::sched
