// Evaluates plans in the simulator: the rate at which a plan meets the limits, found by bisection
// over runs of the production controller and workers on a virtual clock. One thread.
#pragma once

#include <functional>
#include <optional>

#include "apps/plan/inputs.h"
#include "core/latency_limits.h"
#include "core/plan.h"
#include "plan/rank_plans.h"

namespace millrace::apps {

// What bounds the work of a judge.
struct JudgeBounds {
  double requests = 3000;  // of a run at most; with fewer, plans are told apart less well
  // A plan that keeps the limits at this rate is tried at no higher one. Only with limits.
  std::optional<double> requests_per_s;
};

// Requests per second at which limits.share() of the requests meet `limits`. Without limits, those
// that are answered when more arrive: as in the workload, or faster where the plan keeps up with
// it; all at once if they do so in the workload. The server has the sizes of `inputs.engine`. Calls
// `out_of_time` between runs; if it returns true, the plan gets no score (kDeadlineExceeded).
// `inputs` and everything it points to must outlive the evaluator. REQUIRES: inputs.goodput.
plan::Evaluator SimulatedGoodput(const PlanInputs& inputs, const LatencyLimits& limits,
                                 std::function<bool()> out_of_time, const JudgeBounds& bounds = {});

// Whether enough requests keep `limits` at `requests_per_s`. As above.
std::function<Result<bool>(const Plan&)> SimulatedRate(const PlanInputs& inputs,
                                                       const LatencyLimits& limits,
                                                       double requests_per_s,
                                                       const JudgeBounds& bounds = {});

}  // namespace millrace::apps
