// The last step of the search with roles: moves single nodes between pools and layers. One thread.
#pragma once

#include <cstdint>
#include <functional>

#include "plan/roles/role_search.h"

namespace millrace::plan {

// Annealing on the estimate of all pools together, with their hand-overs, from `best`, which
// becomes the best candidate found. A function of its arguments if `stop` never stops it.
void RefineRoles(const RoleProblem& problem, int iterations, uint64_t seed,
                 const std::function<bool()>& stop, RoleCandidate& best);

// Whether some pool only prefills.
bool HasPrefill(const RoleEstimate& estimate);

}  // namespace millrace::plan
