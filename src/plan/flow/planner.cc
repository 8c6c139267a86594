#include "plan/flow/planner.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/flow/check.h"
#include "plan/flow/flow_bounds.h"
#include "plan/flow/milp_phase.h"
#include "plan/flow/portfolio.h"
#include "plan/flow/restarts.h"

namespace millrace::plan {
namespace {

Status CheckCoordinator(const FlowProblem& problem) {
  double in = 0, out = 0;
  for (int i = 0; i < problem.num_nodes(); ++i) {
    in = std::max(in, problem.Link(problem.coordinator(), i));
    out = std::max(out, problem.Link(i, problem.coordinator()));
  }
  if (in > 0 && out > 0) return OkStatus();
  return InvalidArgument(fmt::format("no node can {} the coordinator: its links carry nothing",
                                     in > 0 ? "send tokens back to" : "receive requests from"));
}

Status NothingFlows(const FlowProblem& problem) {
  return InvalidArgument(fmt::format(
      "no placement of {} layers on {} nodes was found that carries anything: no group of nodes "
      "that can talk with each other and the coordinator holds the whole model",
      problem.num_layers, problem.num_nodes()));
}

constexpr int kRestartsBeforeProof = 6;
constexpr int kRestartsMax = 1'000'000;
// Fractions of the remaining time at the start of each phase.
constexpr double kFirstSearch = 0.15, kProof = 0.2, kSecondSearch = 0.7, kNeighbourhoodShare = 0.25,
                 kSearchWithLinks = 0.9;

// Small problems are proved right after a short search. On large ones the proof stops early, and
// the rest of the time goes to the search, the large neighbourhoods and the bound.
void SearchAndProve(Portfolio& portfolio) {
  const auto part = [&](double share) -> std::optional<double> {
    const auto left = portfolio.SecondsLeft();
    return left ? std::optional<double>(*left * share) : std::nullopt;
  };
  if (!portfolio.options().use_milp) {
    RunRestarts(portfolio, kRestartsMax, std::nullopt);
    return;
  }
  const auto solver = MakeCbcSolver();
  const bool slack = LinksAreSlack(portfolio.problem(), portfolio.bound());
  RunRestarts(portfolio, kRestartsBeforeProof, part(kFirstSearch));
  // The program has no links: where they bind, it proves nothing about the incumbent.
  if (slack) ProveWithMilp(portfolio, *solver, part(kProof));
  RunRestarts(portfolio, kRestartsMax, part(slack ? kSecondSearch : kSearchWithLinks));
  // Only the clock bounds CBC's work on large programs.
  if (!portfolio.SecondsLeft()) return;
  if (slack) SearchNeighbourhoods(portfolio, *solver, part(kNeighbourhoodShare));
  TightenBound(portfolio, *solver, std::nullopt);
}

}  // namespace

Result<PlanOutcome> PlanByFlow(const FlowProblem& problem, const PlanOptions& options) {
  MR_RETURN_IF_ERROR(ValidateFlowProblem(problem));
  MR_RETURN_IF_ERROR(CheckCoordinator(problem));
  Portfolio portfolio(problem, options);
  for (const Placement& start : options.warm_starts) {
    MR_RETURN_IF_ERROR(ValidatePlacement(problem, start).WithContext("warm start"));
    portfolio.Offer("warm start", start);
  }
  TryConstructions(portfolio);
  SearchAndProve(portfolio);
  PlanOutcome outcome = portfolio.Finish();
  if (outcome.flow.tokens_per_s <= kFlowMin) return NothingFlows(problem);
  const auto violations = CheckPlan(problem, outcome.plan);
  if (!violations.empty()) return Internal("the checker rejects the plan: " + violations.front());
  return outcome;
}

}  // namespace millrace::plan
