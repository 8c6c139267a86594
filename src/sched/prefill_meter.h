// PrefillMeter: how many tokens per second a pipeline computes, measured on its steps with many
// tokens. A replay costs as much as the prefill, so the choice between swap and recompute is
// arithmetic. A controller also predicts with it how long prompts will take.
//
// Owned by the driver of a scheduler; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/clock.h"
#include "core/step_plan.h"
#include "sched/scheduler.h"

namespace millrace::sched {

class PrefillMeter {
 public:
  explicit PrefillMeter(const PreemptionCosts& costs = {}) : costs_(costs) {}

  void Submitted(const StepPlan& plan, Time now);
  // True if that step was measured. A step's time begins when the step before it ends, because
  // until then the stages are busy with that one.
  bool Done(StepId step, Time now);
  // With the rate as measured so far; before the first measurement, as constructed.
  const PreemptionCosts& costs() const { return costs_; }
  // The rate of the steps that were measured alone: their mean at first, later a moving average.
  // nullopt: none was measured.
  std::optional<double> measured_tokens_per_s() const {
    return steps_measured_ > 0 ? std::optional(measured_tokens_per_s_) : std::nullopt;
  }

 private:
  struct Step {
    StepId id;
    int tokens = 0;
    Time since;
  };
  PreemptionCosts costs_;
  std::deque<Step> in_flight_;  // in the order of submission
  Time last_end_;
  int64_t steps_measured_ = 0;
  double measured_tokens_per_s_ = 0;
};

}  // namespace millrace::sched
