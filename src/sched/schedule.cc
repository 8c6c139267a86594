// Builds the next step: each sequence with as many tokens as it lacks and the step has room for.
#include <algorithm>
#include <span>

#include "base/check.h"
#include "sched/scheduler_impl.h"

namespace millrace::sched {

const StepPlan* SchedulerImpl::Schedule(Time now, std::vector<KvPull>& pulls) {
  requests_.ForgetEnded();
  if (steps_in_flight() >= options_.stages) return nullptr;
  kv_.device().SweepPins(now);
  builder_.Begin();
  lacks_blocks_ = false;
  StepRoom room{.tokens = TokensPerStep(), .sequences = SequencesPerStep()};
  room.tokens_in_all = room.tokens;
  switch (options_.step_mix) {
    case StepMix::kMixed: FillMixed(room, now); break;
    case StepMix::kPrefillFirst: FillPrefillFirst(room, now); break;
  }
  const StepPlan* plan = builder_.Send();
  if (plan) {
    ++stats_.steps;
    stats_.copied_blocks += plan->copies.size();
    last_moved_ = now;
  } else {
    DropUnsentSwaps();
  }
  pulls_.TakeReady(ledger_.first_in_flight(), pulls);
  return plan;
}

// A sequence is in one step at a time: if the first step took all, the other stages would wait for
// it. So a step takes an even share of all sequences, and of the ready ones among the steps that
// may still be issued. No sequence is skipped for long: once all steps in flight have their share,
// the rest fits into the next.
int SchedulerImpl::SequencesPerStep() const {
  if (!options_.even_steps || options_.stages == 1) return options_.max_num_seqs;
  const auto share = [](int64_t sequences, int64_t steps) {
    return (sequences + steps - 1) / steps;
  };
  const int64_t sequences = requests_.running_sequences() + std::ssize(requests_.waiting());
  int64_t at_hand = sequences;
  for (const StepLedger::Step& step : ledger_.steps()) at_hand -= std::ssize(step.entries);
  const int64_t even = std::min(share(sequences, options_.stages),
                                share(at_hand, options_.stages - steps_in_flight()));
  return static_cast<int>(std::clamp<int64_t>(even, 1, options_.max_num_seqs));
}

int SchedulerImpl::TokensPerStep() const {
  const int most = options_.max_num_batched_tokens;
  if (!limits_.tokens_beside_decodes) return most;
  int decodes = 0;
  for (const Request* r : requests_.running()) decodes += r->ReadyDecodes();
  if (decodes == 0 && steps_in_flight() == 0) return most;
  return std::min(most, std::max(*limits_.tokens_beside_decodes, decodes + options_.block_size));
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
    const Grant grant = Obtain(r, blocks, room);
    if (grant == Grant::kWait) {
      room.blocked = lacks_blocks_ = true;
      r.verdict = {Verdict::Reason::kGrowth, blocks, kv_.available()};
    }
    if (grant != Grant::kGranted) return;
  }
  builder_.Emit(r, room);
}

}  // namespace millrace::sched
