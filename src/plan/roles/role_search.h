// SearchRoles: which nodes prefill, which decode, which do both, and the layers that each holds.
// Starts from splits along the ratio of prefill speed to decode speed, and from pools in the
// proportion of the workload; then moves and swaps nodes. Nodes of one kind, region and domain are
// interchangeable until the last step, which moves single nodes. A function of its arguments if
// nothing stops it. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/roles/role_estimate.h"

namespace millrace::plan {

struct RoleSearchOptions {
  uint64_t seed = 1;
  int evaluations = 600;  // of divisions into pools
  int keep = 6;           // different divisions that are returned
  // For each division that is returned: of the search for the layers of each pool alone, and of
  // that for the roles and layers of all nodes, which knows what the hand-overs need.
  int pool_iterations = 1500, joint_iterations = 1500;
  std::function<bool()> stop;  // may be empty
};

struct RoleCandidate {
  RolePlacement placement;
  RoleEstimate estimate;
};

// Different placements with at least one prefill pool and one decode pool, by the estimate, best
// first. Empty if none keeps the limits.
std::vector<RoleCandidate> SearchRoles(const RoleProblem& problem,
                                       const RoleSearchOptions& options);

}  // namespace millrace::plan
