// The steps: the next one has each sequence with as many tokens as it lacks and the step has room
// for; the result of one is found by its step id. A result of a step that is not in flight is
// dropped and counted.
#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

NextStep SchedulerImpl::Schedule(Time now, std::vector<KvPull>& pulls) {
  requests_.ForgetEnded();
  if (steps_in_flight() >= options_.stages) return {};
  kv_.device().SweepPins(now);
  builder_.Begin();
  lacks_blocks_ = false;
  StepRoom room = RoomOfNextStep(options_, limits_, requests_, ledger_);
  room.now = now;
  switch (options_.step_mix) {
    case StepMix::kMixed: FillMixed(room, now); break;
    case StepMix::kPrefillFirst: FillPrefillFirst(room, now); break;
  }
  accounting_.StepFormed(room, now);
  const StepPlan* plan = builder_.Send(now);
  if (plan) {
    ++stats_.steps;
    stats_.copied_blocks += plan->copies.size();
    last_moved_ = now;
  } else {
    preemption_.DropUnsentSwaps();
  }
  pulls_.TakeReady(ledger_.first_in_flight(), pulls);
  return {plan, std::move(room.preemptions)};
}

void SchedulerImpl::ScheduleRunning(size_t position, StepRoom& room) {
  Request& r = *requests_.running()[position];
  if (room.decodes_behind) *room.decodes_behind -= r.ReadyDecodes();
  if (r.paused || r.in_flight == static_cast<int>(r.sequences.size())) return;
  if (r.Prefills() && !room.decodes_behind) {
    int behind = 0;
    for (const Request* later : std::span(requests_.running()).subspan(position + 1)) {
      behind += later->ReadyDecodes();
    }
    room.decodes_behind = behind;
  }
  if (!builder_.Choose(r, room)) return;
  if (const int blocks = builder_.BlocksNeeded(/*on_host=*/false); blocks > 0) {
    if (room.blocked) return;
    if (!preemption_.Obtain(r, blocks, room)) {
      room.blocked = lacks_blocks_ = true;
      r.verdict = {Verdict::Reason::kGrowth, blocks, kv_.available()};
      r.lacked_blocks = true;
      return;
    }
  }
  builder_.Emit(r, room);
}

Status SchedulerImpl::Commit(const StepResult& result, Time now,
                             std::vector<RequestOutput>& outputs, std::vector<KvPull>& pulls) {
  std::optional<StepLedger::Step> step = ledger_.Take(result.id);
  if (!step) {
    ++stats_.results_dropped;
    return results_.wrong();
  }
  kv_.CompleteSteps(StepId(ledger_.first_in_flight().value() - 1));
  results_.Apply(result, *step, now, outputs);
  ledger_.Reuse(std::move(*step));
  last_moved_ = now;
  pulls_.TakeReady(ledger_.first_in_flight(), pulls);
  return results_.wrong();
}

void SchedulerImpl::Abort(RequestId id, std::optional<int> index, Time now,
                          std::vector<RequestOutput>& outputs) {
  Request* r = requests_.Find(id);
  if (!r || (r->beams && index)) return;  // no beam is an answer yet
  accounting_.Settle(*r, now);
  endings_.Abort(*r, index, outputs);
}

// Blocks that are taken away are not returned while a step in flight copies out of them.
std::vector<BlockIndex> SchedulerImpl::TakeReturned() {
  const StepId first = ledger_.first_in_flight();
  return kv_.device().TakeReturned([&](BlockIndex block) { return pulls_.IsRead(block, first); });
}

}  // namespace millrace::sched
