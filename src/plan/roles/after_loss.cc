#include "plan/roles/after_loss.h"

#include <algorithm>
#include <utility>

#include "plan/flow/planner.h"
#include "plan/roles/node_parts.h"
#include "plan/roles/role_estimate.h"
#include "plan/roles/role_plan.h"

namespace millrace::plan {

std::vector<AfterLoss> PlansAfterLoss(const GoodputProblem& problem, const Plan& plan) {
  if (problem.losable.empty()) return {};
  const NodeParts parts(problem.flow, plan);
  GoodputProblem of_parts = parts.Divide(problem);
  of_parts.flow.partial_inference = plan.partial_inference;
  const RoleProblem roles = RolesOf(of_parts);
  const bool apart = std::ranges::any_of(
      plan.stages, [](const StagePlan& stage) { return stage.role != StageRole::kBoth; });
  std::vector<AfterLoss> losses;
  for (const int node : problem.losable) {
    const bool used = std::ranges::any_of(
        plan.stages, [node](const StagePlan& stage) { return stage.nodes.front() == node; });
    if (!used) continue;
    const RolePlacement rest = parts.WithoutNode(node);
    AfterLoss& loss = losses.emplace_back();
    if (apart) {
      const RoleEstimate estimate = EstimateRoles(roles, rest);
      loss.estimate = SummaryOf(estimate);
      loss.plan = MakeRolePlan(roles, rest, estimate, plan.tokens_per_s_bound);
    } else {
      const PlacementFlow flow = parts.Flow(of_parts.flow, rest.layers);
      loss.estimate = EstimateTogether(roles, rest.layers, flow.edges);
      loss.plan = MakePlan(of_parts.flow, rest.layers, flow, plan.tokens_per_s_bound);
    }
    loss.plan = parts.Merge(std::move(loss.plan));
    loss.estimate.limit = LimitAfterLoss(problem, node, loss.estimate.limit);
  }
  std::ranges::stable_sort(losses, {},
                           [](const AfterLoss& loss) { return loss.estimate.requests_per_s; });
  return losses;
}

}  // namespace millrace::plan
