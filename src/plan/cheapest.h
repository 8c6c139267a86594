// CheapestPlan: the machines that carry a wanted rate for the least money: of a plan on all of
// them, the most expensive are left out one after the other as long as the rest still carries it.
// No machine of the result can be left out; that no other set is cheaper is not proved. Pure but
// for the clock handed in; the caller's thread.
#pragma once

#include <functional>
#include <vector>

#include "base/status.h"
#include "plan/flow_problem.h"
#include "plan/planner.h"

namespace millrace::plan {

// How a set of machines is planned: PlanByFlow, or with more limits.
using FlowPlanner = std::function<Result<PlanOutcome>(const FlowProblem&, const PlanOptions&)>;

// `usd_per_hour`: by node. kFailedPrecondition, with what the cluster can carry, when all of it
// together does not carry `tokens_per_s`.
Result<PlanOutcome> CheapestPlan(const FlowProblem& problem,
                                 const std::vector<double>& usd_per_hour, double tokens_per_s,
                                 const PlanOptions& options, const FlowPlanner& planner);

}  // namespace millrace::plan
