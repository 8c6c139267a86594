#include "plan/roles/after_loss.h"

#include <algorithm>

#include "plan/planner.h"
#include "plan/roles/role_estimate.h"
#include "plan/roles/role_plan.h"

namespace millrace::plan {

std::optional<RolePlacement> PlacementOf(const RoleProblem& problem, const Plan& plan) {
  const auto n = static_cast<size_t>(problem.num_nodes());
  RolePlacement out{Placement(n), std::vector<StageRole>(n, StageRole::kBoth)};
  for (const StagePlan& stage : plan.stages) {
    const auto node = static_cast<size_t>(stage.nodes.front());
    if (out.layers[node].size() > 0) return std::nullopt;
    out.layers[node] = stage.layers;
    out.roles[node] = stage.role;
  }
  return out;
}

std::optional<AfterLoss> PlanAfterLoss(const RoleProblem& problem, const Plan& plan, int node) {
  const auto placement = PlacementOf(problem, plan);
  if (!placement) return std::nullopt;
  GoodputProblem now = *problem.goodput;
  now.losable.clear();
  RoleProblem left = problem;
  left.goodput = &now;
  const RolePlacement rest = WithoutNode(*placement, node);
  const bool roles = std::ranges::any_of(
      plan.stages, [](const StagePlan& stage) { return stage.role != StageRole::kBoth; });
  if (!roles) {
    const PlacementFlow flow = SolvePlacementFlow(now.flow, rest.layers);
    return AfterLoss{MakePlan(now.flow, rest.layers, flow, plan.tokens_per_s_bound),
                     EstimateTogether(left, rest.layers, flow.edges).requests_per_s};
  }
  const RoleEstimate estimate = EstimateRoles(left, rest);
  return AfterLoss{MakeRolePlan(left, rest, estimate, plan.tokens_per_s_bound),
                   estimate.requests_per_s};
}

}  // namespace millrace::plan
