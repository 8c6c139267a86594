// What is left of a plan when a node is lost with all its stages: the others keep their layers,
// roles and shares of their nodes (node_parts.h), and requests flow through them. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "core/plan.h"
#include "plan/estimate/flow_goodput.h"

namespace millrace::plan {

struct AfterLoss {
  Plan plan;                 // without stages if nothing can be served
  GoodputEstimate estimate;  // its limit names the lost node
};

// One for each node of `problem.losable` that the plan uses, the worst first. REQUIRES: each stage
// of the plan is on one node.
std::vector<AfterLoss> PlansAfterLoss(const GoodputProblem& problem, const Plan& plan);

}  // namespace millrace::plan
