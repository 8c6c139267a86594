// The simulator as the planner's judge: the rate at which a plan keeps the limits, found by
// bisection over runs of the production router and schedulers on a virtual clock. One thread.
#pragma once

#include "apps/plan/inputs.h"
#include "core/plan.h"
#include "plan/flow_goodput.h"
#include "sim/recorder.h"

namespace millrace::apps {

inline constexpr double kJudgedAttainment = 0.9;  // of the requests keep every limit, at least

// Requests per second: at which kJudgedAttainment of the requests keep `slo`, or without limits,
// that are answered when all come at once. Between two runs `out_of_time` is asked; when it says so
// the plan stays without a judgement (kDeadlineExceeded). `inputs` and what it points to outlive
// the judge. REQUIRES: inputs.goodput.
plan::Evaluator SimulatedGoodput(const PlanInputs& inputs, const sim::Slo& slo,
                                 std::function<bool()> out_of_time);

}  // namespace millrace::apps
