// PrefillMeter: the prefill rate, measured on the steps of a stage that has one in flight. A replay
// costs as much as the prefill, so the choice between swap and recompute is arithmetic.
//
// Owned by the driver of a scheduler; one thread.
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
  // The updated costs, if that step was measured; pass them to SetCosts.
  std::optional<PreemptionCosts> Done(StepId step, Time now);

 private:
  PreemptionCosts costs_;
  StepId step_;  // submitted last
  int tokens_ = 0;
  Time since_;
};

}  // namespace millrace::sched
