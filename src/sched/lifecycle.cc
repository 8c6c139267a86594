// How sequences start together and end one by one: fork, hand-over, finish, abort, retire.
#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

void SchedulerImpl::Abort(RequestId id, std::optional<int> index, Time now,
                          std::vector<RequestOutput>& outputs) {
  Request* r = requests_.Find(id);
  if (!r || (r->beams && index)) return;  // no beam is an answer yet
  accounting_.Settle(*r, now);
  // Without an index, no sequence is left to take over the prompt.
  if (!index) r->sharing_prompt = false;
  for (Sequence& s : r->sequences) {
    if (!s.live() || (index && *index != s.index)) continue;
    RequestOutput& output = AppendOutput(s, outputs);
    output.finish = FinishReason::kAbort;
    End(s, FinishReason::kAbort, output);
  }
}

// `output` is the sequence's last; the request's last output carries its times.
void SchedulerImpl::End(Sequence& sequence, FinishReason reason, RequestOutput& output) {
  Request& r = *sequence.request;
  sequence.finish = reason;
  LeaveOthers(sequence);
  IndexPrefixes(sequence);
  HoldKv(sequence);
  FreeBlocks(kv_, sequence);
  forks_.UpdatePromise(r);
  if (r.live() > 0) return;
  ++(output.finish ? stats_.requests_finished[static_cast<int>(reason)] : stats_.requests_detached);
  output.times = r.times;
  output.account = std::make_shared<const TimeAccount>(std::move(r.account));
  Retire(r);
}

// It has ended, and its siblings continue. The next one computes their prompt if this one did.
void SchedulerImpl::LeaveOthers(Sequence& sequence) {
  Request& r = *sequence.request;
  requests_.NoteEnded(r);
  if (sequence.sent && !sequence.in_flight) builder_.Release(sequence.id);
  if (!r.sharing_prompt) return;
  if (sequence.index == r.leader) {
    Sequence& next = forks_.HandOver(sequence);
    // The token that this step samples has the wrong seed and is not used.
    if (next.in_flight) ledger_.HandOver(*next.in_flight, sequence, next);
  }
  r.sharing_prompt = r.live() > 1;
}

// The sequence ends here without an output, because it continues or has ended elsewhere.
void SchedulerImpl::Discard(Sequence& sequence) {
  sequence.finish = FinishReason::kAbort;
  LeaveOthers(sequence);
  FreeBlocks(kv_, sequence);
}

void SchedulerImpl::Retire(Request& request) {
  order_.Leaves(request);
  requests_.Finish(request);
  forks_.UpdatePromise(request);
  if (request.in_flight == 0) Reap(request);
}

// A reservation ends only here, because a step in flight may still use its blocks.
void SchedulerImpl::Reap(Request& request) {
  reservations_.Release(request);
  requests_.Bury(request);
}

}  // namespace millrace::sched
