#include "sched/preemption.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "sched/preemption_cost.h"

namespace millrace::sched {

// Waits for blocks that a step in flight will free before it preempts another request. A request
// that is itself the last also waits and keeps its blocks; those before it may still take them.
bool Preemption::Obtain(Request& request, int blocks, StepRoom& room) {
  if (!GrowReservation(request, blocks, room)) return false;
  while (parts_.kv.available() < blocks) {
    if (parts_.kv.soon_available() >= blocks || parts_.requests.running().back() == &request)
      return false;
    Preempt(*parts_.requests.running().back(), request, blocks, room);
  }
  return true;
}

// Only a sequence longer than predicted outgrows its promise. It then gets a larger reservation,
// and the last requests in order are preempted for it.
bool Preemption::GrowReservation(Request& request, int blocks, StepRoom& room) {
  if (!parts_.reservations.reserves()) return true;
  int held = blocks;
  for (const Sequence& s : request.sequences) held += static_cast<int>(s.table.size());
  if (held <= request.reserved_blocks) return true;
  // A block that sequences share was counted for each of them.
  held = blocks + DistinctBlocks(request, parts_.kv);
  if (held <= request.reserved_blocks) return true;
  const int n = request.spec.params->n;
  const int before = request.reserved_blocks;
  while (true) {
    parts_.reservations.Release(request);
    if (parts_.reservations.Take(request, (held + n - 1) / n)) return true;
    MR_CHECK(parts_.reservations.Take(request, before / n))
        << "the previous reservation must fit again";
    if (parts_.requests.running().back() == &request) return false;
    Preempt(*parts_.requests.running().back(), request, held - before, room);
  }
}

void Preemption::Preempt(Request& victim, const Request& beneficiary, int blocks_needed,
                         StepRoom& room) {
  parts_.accounting.Settle(victim, room.now);
  victim.account.Enter(TimeCause::kPreemption);
  victim.ahead.ids = {beneficiary.spec.id};
  const int available = parts_.kv.available();
  // They start from the leader's prompt again.
  parts_.forks.DropTables(victim);
  PreemptionRecord record =
      Weigh(victim, parts_.kv, parts_.options.preemption, parts_.options.costs);
  record.on_behalf_of = beneficiary.spec.id;
  record.blocks_needed = blocks_needed;
  record.blocks_released += parts_.kv.available() - available;
  record.blocks_available = available;
  for (Sequence& s : victim.sequences) {
    if (s.live()) IndexPrefixes(parts_.kv, s);
  }
  if (record.chosen == PreemptionMode::kSwap) {
    SwapOut(victim);
    ++parts_.stats.preemptions_swap;
  } else {
    DropKv(parts_.kv, victim);
    ++parts_.stats.preemptions_recompute;
  }
  const bool swapped = record.chosen == PreemptionMode::kSwap;
  parts_.requests.WaitAgain(victim, swapped ? RequestState::kSwapped : RequestState::kPreempted);
  parts_.reservations.Release(victim);
  parts_.forks.UpdatePromise(victim);
  victim.verdict = {Verdict::Reason::kPreemptedThisStep};
  ++victim.preemptions;
  room.preemptions.push_back(record);
}

// A step in flight writes its KV before the swap-out of a later step reads it, so its tokens count
// as computed when its result arrives.
void Preemption::SwapOut(Request& victim) {
  moves_.clear();
  for (Sequence& s : victim.sequences) {
    if (!s.started || !s.live()) continue;
    moves_.push_back({&s.table, &s.host_table, s.in_flight});
    if (s.offered) s.computed = victim.TotalOf(s) - 1;
    s.offered = false;
    s.lacking_until = 0;
    s.sent_blocks = 0;
  }
  parts_.stats.swapped_out_blocks += parts_.builder.SwapOut(moves_);
  victim.swapped_out_by = parts_.ledger.next();
}

void Preemption::SwapIn(Request& request) {
  moves_.clear();
  for (Sequence& s : request.sequences) {
    if (s.started && s.live()) moves_.push_back({&s.host_table, &s.table, std::nullopt});
  }
  parts_.reservations.Take(request);
  for (Sequence& s : request.sequences) s.swapped_in_by = parts_.ledger.next();
  parts_.builder.SwapIn(moves_);
  // The step that ended the prompt may have been in flight when it was swapped out.
  parts_.forks.MaybeStart(request);
}

// Copies to the host that have no step to travel in must not delay a pull, because the next step
// may need it. The request that was to be swapped out is recomputed instead.
void Preemption::DropUnsentSwaps() {
  const StepId unsent = parts_.ledger.next();
  if (!parts_.pulls.AnyWaitsFor(unsent)) return;
  for (const auto& [key, r] : parts_.requests.waiting()) {
    if (r->state != RequestState::kSwapped || r->swapped_out_by != unsent) continue;
    DropKv(parts_.kv, *r);
    parts_.requests.DropSwap(*r);
  }
  parts_.builder.DropSwapsOut();
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
