// PrefillMeter: how fast prompts are computed, from the steps of a stage that has one in flight.
// What a replay would cost is what prefill costs: so the choice between swap and recompute is
// arithmetic.
//
// Owned by whoever drives a scheduler; one thread.
#pragma once

#include <optional>

#include "base/clock.h"
#include "core/step_plan.h"
#include "sched/scheduler.h"

namespace millrace::sched {

class PrefillMeter {
 public:
  explicit PrefillMeter(const PreemptionCosts& costs) : costs_(costs) {}

  void Submitted(const StepPlan& plan, Time now);
  // The costs as they are now, when that step said something about them: for SetCosts.
  std::optional<PreemptionCosts> Done(StepId step, Time now);

 private:
  PreemptionCosts costs_;
  StepId step_;  // submitted last
  int tokens_ = 0;
  Time since_;
};

}  // namespace millrace::sched
