// PrefillMeter: how many tokens per second a pipeline computes, measured on its steps with many
// tokens. A replay costs as much as the prefill, so the choice between swap and recompute is
// arithmetic. A controller also predicts with it how long prompts will take.
//
// Owned by the driver of a scheduler; one thread.
#pragma once

#include <cstdint>
#include <optional>

#include "sched/scheduler.h"
#include "sched/step_timer.h"

namespace millrace::sched {

class PrefillMeter {
 public:
  explicit PrefillMeter(const PreemptionCosts& costs = {}) : costs_(costs) {}

  // A step has ended. True if it had enough tokens to be measured.
  bool Ended(const TimedStep& step);
  // With the rate as measured so far; before the first measurement, as constructed.
  const PreemptionCosts& costs() const { return costs_; }
  // The rate of the steps that were measured alone: their mean at first, later a moving average.
  // nullopt: none was measured.
  std::optional<double> measured_tokens_per_s() const {
    return steps_measured_ > 0 ? std::optional(measured_tokens_per_s_) : std::nullopt;
  }

 private:
  PreemptionCosts costs_;
  int64_t steps_measured_ = 0;
  double measured_tokens_per_s_ = 0;
};

}  // namespace millrace::sched
