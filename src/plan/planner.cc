#include "plan/planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/check.h"
#include "plan/portfolio.h"
#include "plan/restarts.h"

namespace millrace::plan {
namespace {

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
  TryConstructions(portfolio);
  RunRestarts(portfolio, portfolio.SecondsLeft());
  PlanOutcome outcome = portfolio.Finish();
  if (outcome.flow.tokens_per_s <= kFlowMin) return NothingFlows(problem);
  const auto violations = CheckPlan(problem, outcome.plan);
  if (!violations.empty()) return Internal("the checker refuses the plan: " + violations.front());
  return outcome;
}

}  // namespace millrace::plan
