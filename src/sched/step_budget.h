// StepBudget: how many tokens a pipeline's steps may have so that those that decode keep a limit of
// the time per output token (TPOT). A sequence gets one token per step, so no such step should take
// longer than the limit. The budget follows the steps as they are measured: it shrinks by the
// prompt tokens of a step that took too long, and grows slowly while full steps are fast enough.
//
// Owned by the driver of a scheduler (Scheduler::LimitSteps); one thread.
#pragma once

#include "base/clock.h"
#include "sched/step_timer.h"

namespace millrace::sched {

class StepBudget {
 public:
  // `tokens_max`: the budget at first, and the largest.
  StepBudget(Duration tpot_limit, int tokens_max)
      : limit_(tpot_limit), tokens_max_(tokens_max), tokens_(tokens_max) {}

  int tokens() const { return tokens_; }
  // A step has ended. True: the budget has changed.
  bool Ended(const TimedStep& step);

 private:
  Duration limit_;
  int tokens_max_;
  int tokens_;
};

}  // namespace millrace::sched
