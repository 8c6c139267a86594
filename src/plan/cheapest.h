// CheapestPlan: the machines that carry a requested rate for the least money. It starts with a plan
// on all machines and leaves out the most expensive ones, one after another, while the rest still
// carries the rate. No machine of the result can be left out; it is not proved that no other set is
// cheaper. Pure except for the given clock; runs on the caller's thread.
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"
#include "plan/flow/flow_problem.h"
#include "plan/flow/planner.h"

namespace millrace::plan {

// Plans a set of machines: PlanByFlow, or a planner with more limits.
using FlowPlanner = std::function<Result<PlanOutcome>(const FlowProblem&, const PlanOptions&)>;

// `usd_per_hour`: by node. Returns kFailedPrecondition, with what the cluster can carry, if all
// nodes together do not carry `tokens_per_s`.
Result<PlanOutcome> CheapestPlan(const FlowProblem& problem,
                                 const std::vector<double>& usd_per_hour, double tokens_per_s,
                                 const PlanOptions& options, const FlowPlanner& planner);

}  // namespace millrace::plan
