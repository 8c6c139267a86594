#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "plan/check.h"
#include "plan/flow_bounds.h"
#include "plan/portfolio.h"

namespace millrace::plan {
namespace {

// Regions in the order of their first node, and within each the nodes by index: a chain that
// crosses between regions as seldom as it can.
std::vector<int> RegionOrder(const FlowProblem& problem) {
  std::vector<int> order(problem.num_nodes());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return problem.nodes[a].region < problem.nodes[b].region; });
  return order;
}

void TryChains(Portfolio& portfolio) {
  const FlowProblem& problem = portfolio.problem();
  if (const auto single = BestSingleNode(problem)) {
    Placement placement(problem.num_nodes());
    placement[single->node] = {0, problem.num_layers};
    portfolio.Offer("single machine", placement);
  }
  const double threshold = ChainThreshold(problem);
  if (const auto chain = ChainPlacement(problem, threshold, RegionOrder(problem))) {
    portfolio.Offer("chain threshold", *chain);
  }
}

Status NothingFlows(const FlowProblem& problem) {
  double in = 0, out = 0;
  for (int i = 0; i < problem.num_nodes(); ++i) {
    in = std::max(in, problem.Link(problem.coordinator(), i));
    out = std::max(out, problem.Link(i, problem.coordinator()));
  }
  if (in <= 0 || out <= 0) {
    return InvalidArgument("no node can talk with the coordinator in both directions");
  }
  return InvalidArgument(fmt::format(
      "no placement of {} layers on {} nodes carries anything: no group of nodes that can talk "
      "with each other and the coordinator holds the whole model",
      problem.num_layers, problem.num_nodes()));
}

}  // namespace

Result<PlanOutcome> PlanByFlow(const FlowProblem& problem, const PlanOptions& options) {
  MR_RETURN_IF_ERROR(ValidateFlowProblem(problem));
  Portfolio portfolio(problem, options);
  for (const Placement& start : options.warm_starts) {
    MR_RETURN_IF_ERROR(ValidatePlacement(problem, start).WithContext("warm start"));
    portfolio.Offer("warm start", start);
  }
  TryChains(portfolio);
  PlanOutcome outcome = portfolio.Finish();
  if (outcome.flow.tokens_per_s <= kFlowMin) return NothingFlows(problem);
  const auto violations = CheckPlan(problem, outcome.plan);
  if (!violations.empty()) return Internal("the checker refuses the plan: " + violations.front());
  return outcome;
}

}  // namespace millrace::plan
