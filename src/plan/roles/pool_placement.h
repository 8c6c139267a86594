// Places the layers of the nodes of one pool: copies on nodes that hold the whole model, chains of
// the others, and the constructions of the flow planner. The placement with the highest rate wins.
// Remembers the pools of one search; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "plan/roles/role_estimate.h"

namespace millrace::plan {

class PoolPlacer {
 public:
  explicit PoolPlacer(const RoleProblem& problem) : problem_(problem) {}

  // Ranges for the nodes in `members` (by node); empty ranges if they cannot hold the model.
  const Placement& Place(StageRole role, const std::vector<bool>& members);

  // Annealing on the pool's rate, from `start`. A function of its arguments, if `stop` never stops.
  Placement Improve(StageRole role, const std::vector<bool>& members, const Placement& start,
                    int iterations, uint64_t seed, const std::function<bool()>& stop) const;

  // Requests per second of a pool alone.
  double RateOf(StageRole role, const Placement& placement) const;

 private:
  const FlowProblem& FlowOf(StageRole role) const;

  const RoleProblem& problem_;
  std::map<std::pair<StageRole, std::vector<bool>>, Placement> known_;
};

}  // namespace millrace::plan
