#include "sched/endings.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace millrace::sched {

void Endings::Abort(Request& request, std::optional<int> index,
                    std::vector<RequestOutput>& outputs) {
  // Without an index, no sequence is left to take over the prompt.
  if (!index) request.sharing_prompt = false;
  for (Sequence& s : request.sequences) {
    if (!s.live() || (index && *index != s.index)) continue;
    RequestOutput& output = AppendOutput(s, outputs);
    output.finish = FinishReason::kAbort;
    End(s, FinishReason::kAbort, output);
  }
}

void Endings::End(Sequence& sequence, FinishReason reason, RequestOutput& output) {
  Request& r = *sequence.request;
  sequence.finish = reason;
  LeaveOthers(sequence);
  IndexPrefixes(parts_.kv, sequence);
  HoldKv(sequence);
  FreeBlocks(parts_.kv, sequence);
  parts_.forks.UpdatePromise(r);
  if (r.live() > 0) return;
  ++(output.finish ? parts_.stats.requests_finished[static_cast<int>(reason)]
                   : parts_.stats.requests_detached);
  output.times = r.times;
  output.account = std::make_shared<const TimeAccount>(std::move(r.account));
  Retire(r);
}

// It has ended, and its siblings continue. The next one computes their prompt if this one did.
void Endings::LeaveOthers(Sequence& sequence) {
  Request& r = *sequence.request;
  parts_.requests.NoteEnded(r);
  if (sequence.sent && !sequence.in_flight) parts_.builder.Release(sequence.id);
  if (!r.sharing_prompt) return;
  if (sequence.index == r.leader) {
    Sequence& next = parts_.forks.HandOver(sequence);
    // The token that this step samples has the wrong seed and is not used.
    if (next.in_flight) parts_.ledger.HandOver(*next.in_flight, sequence, next);
  }
  r.sharing_prompt = r.live() > 1;
}

void Endings::Discard(Sequence& sequence) {
  sequence.finish = FinishReason::kAbort;
  LeaveOthers(sequence);
  FreeBlocks(parts_.kv, sequence);
}

void Endings::Retire(Request& request) {
  parts_.order.Leaves(request);
  parts_.requests.Finish(request);
  parts_.forks.UpdatePromise(request);
  if (request.in_flight == 0) Reap(request);
}

// A reservation ends only here, because a step in flight may still use its blocks.
void Endings::Reap(Request& request) {
  parts_.reservations.Release(request);
  parts_.requests.Bury(request);
}

void Endings::Leave(Request& request) {
  for (Sequence& s : request.sequences) {
    if (s.live()) IndexPrefixes(parts_.kv, s);
  }
  parts_.order.Leaves(request);
  parts_.requests.Finish(request);
  request.sharing_prompt = false;
  request.detached = true;
  for (Sequence& s : request.sequences) {
    if (s.live()) Discard(s);
  }
  parts_.forks.UpdatePromise(request);
  ++parts_.stats.requests_detached;
  parts_.requests.Leave(request);
  if (request.in_flight == 0) Reap(request);
}

void Endings::HoldKv(const Sequence& sequence) {
  const Request& r = *sequence.request;
  const bool ended_well =
      sequence.finish == FinishReason::kStop || sequence.finish == FinishReason::kLength;
  if (!r.spec.hold_kv || !ended_well || r.live() > 0) return;
  parts_.holds.Hold(r.spec.id, sequence.table,
                    r.times.last_token.value_or(r.times.arrived) + *r.spec.hold_kv);
}

}  // namespace millrace::sched
