#include "plan/cheapest.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "plan/flow/flow_bounds.h"

namespace millrace::plan {
namespace {

constexpr double kCheapestFirst = 0.4;  // of the time limit; the trials share the rest
constexpr int64_t kTrialShare = 10;     // a trial gets the first plan's iterations divided by this
constexpr double kReached = 1 - 1e-9;   // of the requested rate

int64_t LayersHeld(const FlowProblem& problem) {
  int64_t layers = 0;
  for (const FlowNode& node : problem.nodes) layers += node.max_layers();
  return layers;
}

// Nodes without flow come first, then the most expensive ones.
std::vector<int> Order(const PlanOutcome& outcome, const std::vector<double>& usd_per_hour) {
  std::vector<int> order(usd_per_hour.size());
  std::iota(order.begin(), order.end(), 0);
  const auto used = [&](int node) {
    return outcome.flow.node_tokens_per_s[static_cast<size_t>(node)] > 0;
  };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    if (used(a) != used(b)) return !used(a);
    return usd_per_hour[static_cast<size_t>(a)] > usd_per_hour[static_cast<size_t>(b)];
  });
  return order;
}

void ExplainLeftOut(const FlowProblem& all, const FlowProblem& kept, double tokens_per_s,
                    const std::vector<double>& usd_per_hour, Plan& plan) {
  for (UnusedNode& unused : plan.unused) {
    const auto node = static_cast<size_t>(unused.node);
    if (kept.nodes[node].max_layers() > 0 || all.nodes[node].max_layers() == 0) continue;
    unused.reason =
        fmt::format("not needed: the others carry {:.6g} tokens/s; this saves {:g} USD/h",
                    tokens_per_s, usd_per_hour[node]);
  }
}

}  // namespace

Result<PlanOutcome> CheapestPlan(const FlowProblem& problem,
                                 const std::vector<double>& usd_per_hour, double tokens_per_s,
                                 const PlanOptions& options, const FlowPlanner& planner) {
  PlanOptions search = options;
  if (options.time_limit_s) search.time_limit_s = *options.time_limit_s * kCheapestFirst;
  MR_ASSIGN_OR_RETURN(PlanOutcome best, planner(problem, search));
  if (best.plan.tokens_per_s < tokens_per_s * kReached) {
    return FailedPrecondition(
        fmt::format("the cluster carries {:.1f} tokens/s in the best plan found, and at most "
                    "{:.1f}; {:.1f} are "
                    "wanted",
                    best.plan.tokens_per_s, best.bound, tokens_per_s));
  }
  const double bound = best.bound;
  if (options.time_limit_s) {
    search.time_limit_s = *options.time_limit_s * (1 - kCheapestFirst) /
                          static_cast<double>(std::max<size_t>(1, problem.nodes.size()));
  }
  search.iterations = std::max<int64_t>(1, options.iterations / kTrialShare);
  FlowProblem kept = problem;
  for (int node : Order(best, usd_per_hour)) {
    FlowProblem without = kept;
    without.nodes[static_cast<size_t>(node)].tokens_per_s.clear();
    if (LayersHeld(without) < without.num_layers) continue;
    if (SelfConsistentBound(without) < tokens_per_s * kReached) continue;
    Placement start = best.placement;
    start[static_cast<size_t>(node)] = {};
    search.warm_starts = {std::move(start)};
    auto trial = planner(without, search);
    // Leaving a node out may disconnect the cluster. That is no error: the node stays.
    if (!trial.ok() || trial->plan.tokens_per_s < tokens_per_s * kReached) continue;
    kept = std::move(without);
    best = std::move(*trial);
  }
  best.bound = best.plan.tokens_per_s_bound = bound;
  ExplainLeftOut(problem, kept, tokens_per_s, usd_per_hour, best.plan);
  return best;
}

}  // namespace millrace::plan
