// Evaluates plans in the simulator: the rate at which a plan meets the limits, found by bisection
// over runs of the production controller and workers on a virtual clock. One thread.
#pragma once

#include "apps/plan/inputs.h"
#include "core/plan.h"
#include "plan/flow_goodput.h"
#include "sim/recorder.h"

namespace millrace::apps {

inline constexpr double kJudgedAttainment = 0.9;  // share of requests that must meet every limit

// Requests per second at which kJudgedAttainment of the requests meet `slo`; without limits, the
// rate of answers when all requests arrive at once. Calls `out_of_time` between runs; if it returns
// true, the plan gets no score (kDeadlineExceeded). `inputs` and everything it points to must
// outlive the evaluator. REQUIRES: inputs.goodput.
plan::Evaluator SimulatedGoodput(const PlanInputs& inputs, const sim::Slo& slo,
                                 std::function<bool()> out_of_time);

}  // namespace millrace::apps
