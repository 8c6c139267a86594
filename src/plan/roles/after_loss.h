// What is left of a plan when a node is lost: the other nodes keep their layers and roles, and
// requests flow through them. Pure; any thread.
#pragma once

#include <optional>

#include "core/plan.h"
#include "plan/roles/role_problem.h"

namespace millrace::plan {

// The roles and layers of a plan. None: a node has several stages.
std::optional<RolePlacement> PlacementOf(const RoleProblem& problem, const Plan& plan);

struct AfterLoss {
  Plan plan;                  // without stages if nothing can be served
  double requests_per_s = 0;  // estimated
};
// None: a node has several stages.
std::optional<AfterLoss> PlanAfterLoss(const RoleProblem& problem, const Plan& plan, int node);

}  // namespace millrace::plan
