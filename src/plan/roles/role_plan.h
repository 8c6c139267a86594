// Converts a placement with roles to a Plan, with an edge for every phase. Pure; any thread.
#pragma once

#include "core/plan.h"
#include "plan/roles/role_estimate.h"

namespace millrace::plan {

// Units share the requests in proportion to their estimates, and all flows are as large as the
// fullest stage or link allows. `estimate` is that of `placement`.
Plan MakeRolePlan(const RoleProblem& problem, const RolePlacement& placement,
                  const RoleEstimate& estimate, double bound);

}  // namespace millrace::plan
