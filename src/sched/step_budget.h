// StepBudget: how many tokens a pipeline's steps may have so that those that decode keep a limit of
// the time per output token (TPOT). A sequence gets one token per step, and its TPOT is the mean of
// the steps of its answer. So the mean of some steps in a row counts: a long one between short ones
// does no harm. The budget shrinks when that mean is beyond the limit, and grows while full steps
// leave room.
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
  // Of the steps that decode since the budget was last decided.
  int steps_ = 0;
  int tokens_most_ = 0;   // in one of them
  bool prompts_ = false;  // one of them had prompt tokens
  Duration took_;         // all of them
};

}  // namespace millrace::sched
