#include "plan/cheapest_goodput.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "plan/roles/role_problem.h"

namespace millrace::plan {
namespace {

constexpr int kAttemptsMax = 4;        // until a plan answers the rate, not only its estimate
constexpr double kMoreEstimate = 1.2;  // what the estimate must promise, from attempt to attempt

GoodputProblem Without(const GoodputProblem& problem, int node) {
  GoodputProblem out = problem;
  FlowNode& left = out.flow.nodes[static_cast<size_t>(node)];
  left.tokens_per_s.clear();
  left.prefill_tokens_per_s.clear();
  left.decode_tokens_per_s.clear();
  return out;
}

bool Holds(const FlowProblem& problem) {
  int64_t held = 0;
  for (const FlowNode& node : problem.nodes) held += node.max_layers();
  return held >= problem.num_layers;
}

class CheapestSearch {
 public:
  CheapestSearch(const GoodputProblem& problem, const std::vector<double>& usd_per_hour,
                 double requests_per_s, const CheapestGoodputOptions& options)
      : problem_(problem),
        usd_per_hour_(usd_per_hour),
        requests_per_s_(requests_per_s),
        options_(options) {}

  Result<PlanCandidate> Run() {
    MR_ASSIGN_OR_RETURN(const auto all, RankPlans(problem_, options_.first, nullptr));
    const double most = all.front().estimate.requests_per_s;
    double required = requests_per_s_;
    for (int attempt = 0; attempt < kAttemptsMax && most >= required; ++attempt) {
      PlanCandidate found = LeaveOut(all.front(), required);
      if (!options_.keeps || Kept(found.plan)) return found;
      required *= kMoreEstimate;
    }
    // The plan with the most to spare may do where the estimates promise too much.
    for (const PlanCandidate& c : all) {
      if (most < requests_per_s_ || !options_.keeps) break;
      if (Kept(c.plan)) return LeaveUnused(c);
    }
    return FailedPrecondition(
        fmt::format("the machines answer {:.3g} requests/s within the limits by the best plan's "
                    "estimate{}, and {:.3g} are wanted; bound by {}",
                    most, most >= requests_per_s_ ? ", less in the simulator" : "", requests_per_s_,
                    all.front().estimate.limit));
  }

 private:
  // An error is of this plan alone: the simulator may find no memory for KV where the estimate
  // does.
  bool Kept(const Plan& plan) const {
    const auto kept = options_.keeps(plan);
    return kept.ok() && *kept;
  }

  PlanCandidate LeaveUnused(PlanCandidate candidate) const {
    for (UnusedNode& unused : candidate.plan.unused) {
      if (problem_.flow.nodes[static_cast<size_t>(unused.node)].max_layers() == 0) continue;
      unused.reason = fmt::format("not needed for {:.4g} req/s; this saves {:g} USD/h",
                                  requests_per_s_, usd_per_hour_[static_cast<size_t>(unused.node)]);
    }
    return candidate;
  }

  // The most expensive first.
  std::vector<int> Order() const {
    std::vector<int> order(usd_per_hour_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int a, int b) {
      return usd_per_hour_[static_cast<size_t>(a)] > usd_per_hour_[static_cast<size_t>(b)];
    });
    return order;
  }

  static bool Uses(const Plan& plan, int node) {
    return std::ranges::any_of(plan.stages, [node](const StagePlan& stage) {
      return std::ranges::find(stage.nodes, node) != stage.nodes.end();
    });
  }

  PlanCandidate LeaveOut(PlanCandidate best, double required) const {
    GoodputProblem kept = problem_;
    const double tokens = problem_.prompt_tokens + problem_.output_tokens;
    for (const int node : Order()) {
      if (kept.flow.nodes[static_cast<size_t>(node)].max_layers() == 0) continue;
      GoodputProblem without = Without(kept, node);
      if (!Uses(best.plan, node)) {
        kept = std::move(without);
        continue;
      }
      if (options_.stop && options_.stop()) break;
      if (!Holds(without.flow) || RoleBound(without) < required * tokens) continue;
      const auto trial = RankPlans(without, options_.trial, nullptr);
      if (!trial.ok() || trial->front().estimate.requests_per_s < required) continue;
      kept = std::move(without);
      best = trial->front();
    }
    return LeaveUnused(std::move(best));
  }

  const GoodputProblem& problem_;
  const std::vector<double>& usd_per_hour_;
  const double requests_per_s_;
  const CheapestGoodputOptions& options_;
};

}  // namespace

CheapestGoodputOptions DefaultCheapestOptions() {
  CheapestGoodputOptions options;
  options.trial.colocated = {.flow_iterations = 40'000,
                             .goodput_iterations = 500,
                             .rounds_iterations = 200,
                             .searches = 1};
  options.trial.roles = {
      .evaluations = 80, .keep = 1, .pool_iterations = 100, .joint_iterations = 200};
  return options;
}

Result<PlanCandidate> CheapestGoodput(const GoodputProblem& problem,
                                      const std::vector<double>& usd_per_hour,
                                      double requests_per_s,
                                      const CheapestGoodputOptions& options) {
  return CheapestSearch(problem, usd_per_hour, requests_per_s, options).Run();
}

}  // namespace millrace::plan
