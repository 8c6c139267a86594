#include "plan/flow/milp_phase.h"

#include <algorithm>

#include "base/rng.h"
#include "plan/flow/aggregated_program.h"
#include "plan/flow/flow_bounds.h"

namespace millrace::plan {
namespace {

constexpr double kJustAbove = 1.001;     // cap of a proof relative to the incumbent
constexpr double kCapMargin = 1e-6;      // relative distance below its cap at which a bound counts
constexpr int kNodesWithoutClock = 300;  // search nodes; replaces the time limit
constexpr size_t kColumnsWithoutClock = 1200;  // CBC's work at the root has no other limit
constexpr size_t kColumnsForProof = 3000;      // beyond it, no proof ends in time
constexpr int kNeighbourhoods = 40;
constexpr int kFreeNodesMin = 4, kFreeNodesMax = 8;
constexpr double kNeighbourhoodSeconds = 1.5;
constexpr int kCappings = 8;

MilpLimits LimitsFor(const Portfolio& portfolio, std::optional<double> seconds) {
  MilpLimits limits;
  if (!portfolio.SecondsLeft()) {
    limits.nodes = kNodesWithoutClock;
  } else {
    limits.seconds = std::min(*portfolio.SecondsLeft(), seconds.value_or(*portfolio.SecondsLeft()));
  }
  return limits;
}

constexpr int64_t kTermsMax = 1'000'000;  // beyond it, a program is not built

bool CanBuild(const Portfolio& portfolio) {
  return AggregatedProgram::CoverTerms(portfolio.problem()) <= kTermsMax;
}

bool TooLarge(const Portfolio& portfolio, const AggregatedProgram& program) {
  return !portfolio.SecondsLeft() && program.program().columns.size() > kColumnsWithoutClock;
}

// Records the result of one solve of `program`: a placement, and a bound if it is below the cap.
void Learn(Portfolio& portfolio, const char* name, const AggregatedProgram& program,
           const MilpSolution& solution, bool whole) {
  if (solution.has_values()) portfolio.Offer(name, program.Decode(solution.values));
  const bool bounded = whole && solution.status != MilpStatus::kInfeasible &&
                       solution.bound < program.cap() * (1 - kCapMargin);
  if (bounded) portfolio.OfferBound(name, std::max(solution.bound, portfolio.best()));
}

}  // namespace

void ProveWithMilp(Portfolio& portfolio, MilpSolver& solver, std::optional<double> seconds) {
  if (!CanBuild(portfolio)) return;
  const FlowProblem& problem = portfolio.problem();
  // A better incumbent found on the way needs a new proof above it.
  for (int round = 0; round < kCappings && portfolio.best() > 0 && !portfolio.Proved(); ++round) {
    const double before = portfolio.best();
    const double cap = std::min(before * kJustAbove, portfolio.bound());
    const AggregatedProgram program(problem, cap, problem.partial_inference);
    if (TooLarge(portfolio, program) || program.program().columns.size() > kColumnsForProof) return;
    const MilpSolution solution = solver.Solve(program.program(), LimitsFor(portfolio, seconds));
    Learn(portfolio, "aggregated program", program, solution, true);
    if (portfolio.best() <= before * (1 + kFlowTolerance)) return;
  }
}

void SearchNeighbourhoods(Portfolio& portfolio, MilpSolver& solver, std::optional<double> seconds) {
  if (!CanBuild(portfolio)) return;
  const FlowProblem& problem = portfolio.problem();
  const double stop_below = seconds ? portfolio.SecondsLeft().value_or(0) - *seconds : 0;
  Rng rng(portfolio.options().seed);
  for (int round = 0; round < kNeighbourhoods && !portfolio.Proved(); ++round) {
    if (portfolio.SecondsLeft() && *portfolio.SecondsLeft() <= std::max(stop_below, 0.0)) return;
    const double cap = std::min(portfolio.best() * (1 + 0.01 * (1 + round % 4)), portfolio.bound());
    AggregatedProgram program(problem, cap, problem.partial_inference);
    std::vector<int> free;
    for (int64_t i = rng.Between(kFreeNodesMin, kFreeNodesMax); i > 0; --i) {
      free.push_back(static_cast<int>(rng.Between(0, problem.num_nodes() - 1)));
    }
    program.Fix(portfolio.placement(), free);
    const MilpSolution solution =
        solver.Solve(program.program(), LimitsFor(portfolio, kNeighbourhoodSeconds));
    Learn(portfolio, "large neighbourhoods", program, solution, false);
  }
}

void TightenBound(Portfolio& portfolio, MilpSolver& solver, std::optional<double> seconds) {
  if (!CanBuild(portfolio)) return;
  const FlowProblem& problem = portfolio.problem();
  for (int round = 0; round < kCappings && !portfolio.Proved() && !portfolio.OutOfTime(); ++round) {
    const double cap = portfolio.bound();
    // The cover bounds both kinds of plan, and its relaxation is the faster one.
    const AggregatedProgram program(problem, cap, true);
    const MilpSolution solution = solver.Solve(program.program(), LimitsFor(portfolio, seconds));
    Learn(portfolio, "capped program", program, solution, true);
    if (portfolio.bound() >= cap * (1 - kCapMargin)) return;
  }
}

}  // namespace millrace::plan
