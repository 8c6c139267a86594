// PlanByFlow: places the layers of a model on unlike nodes so that the most tokens per second flow
// through (Helix, ASPLOS'25, section 4). It runs a portfolio of methods under a time limit and
// reports how far the result can be from the optimum. Before it is returned, the plan is checked by
// code that shares nothing with the solvers. Runs on the caller's thread; keeps no state.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/plan.h"
#include "plan/flow/flow_problem.h"
#include "plan/flow/placement_flow.h"

namespace millrace::plan {

// A relative gap this small is rounding: the plan is optimal.
inline constexpr double kProvedGap = 1e-6;

// Reported when a method ends or the incumbent or the bound improves.
struct PlanProgress {
  std::string method;       // running now
  double tokens_per_s = 0;  // value of the incumbent
  double bound = 0;
  double elapsed_s = 0;  // zero without a clock

  // (bound - incumbent) / bound: zero when proved optimal.
  double gap() const { return bound > 0 ? (bound - tokens_per_s) / bound : 0; }
};

struct PlanOptions {
  uint64_t seed = 1;
  // Proposals of the local search in all its restarts. Without a clock the result is a function of
  // the problem, the seed and this number.
  int64_t iterations = 20'000'000;
  // A time limit needs both. The search ends at the first of time and iterations.
  const Clock* clock = nullptr;
  std::optional<double> time_limit_s;
  bool use_milp = true;  // the aggregated program, which improves and proves
  std::vector<Placement> warm_starts;
  std::function<void(const PlanProgress&)> progress;
};

// The result of one method of the portfolio.
struct MethodResult {
  std::string method;
  double tokens_per_s = 0;
};

struct PlanOutcome {
  Placement placement;
  PlacementFlow flow;  // tokens_per_s is the plan's value
  Plan plan;           // the same for the router and the simulator
  double bound = 0;    // no placement carries more
  std::string bound_method;
  std::string method;  // the method that found the placement
  std::vector<MethodResult> methods;
  int64_t iterations = 0;
  double elapsed_s = 0;

  double gap() const { return bound > 0 ? (bound - flow.tokens_per_s) / bound : 0; }
  bool proved_optimal() const { return gap() <= kProvedGap; }
};

// Errors, with the numbers: the problem is not valid, or no placement carries anything (regions
// without a connection).
Result<PlanOutcome> PlanByFlow(const FlowProblem& problem, const PlanOptions& options);

// `placement` as a Plan: a stage per node that carries flow, its edges, and the unused nodes with
// the reason.
Plan MakePlan(const FlowProblem& problem, const Placement& placement, const PlacementFlow& flow,
              double bound);

}  // namespace millrace::plan
