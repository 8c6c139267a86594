#include "plan/flow/trunks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace millrace::plan {
namespace {

constexpr double kFull = 1 - 1e-6, kFits = 1 + 1e-6;  // of a trunk's capacity
constexpr int kRoundsMax = 4;
// Fractions of the time limit; the rounds share the rest.
constexpr double kTrunksFirst = 0.4, kAroundSearch = 0.3;

// The direction of each link along its trunk: by the regions of its ends, or by their order within
// one region.
class Directions {
 public:
  explicit Directions(const ClusterSpec& cluster) : cluster_(cluster) {
    // The coordinator's region is that of a node that reaches it without a trunk.
    for (const LinkSpec& link : cluster.links) {
      if (link.to == cluster.coordinator() && !link.trunk) {
        home_ = cluster.nodes[static_cast<size_t>(link.from)].region;
        break;
      }
    }
    for (const LinkSpec& link : cluster.links) {
      if (link.trunk) trunks_[{link.from, link.to}] = *link.trunk;
    }
  }

  // The trunk that a link crosses, and in which direction.
  std::optional<TrunkDirection> Find(int from, int to) const {
    const auto at = trunks_.find({from, to});
    if (at == trunks_.end()) return std::nullopt;
    return std::pair(at->second, std::pair(Region(from), from) < std::pair(Region(to), to));
  }

 private:
  const std::string& Region(int end) const {
    return end == cluster_.coordinator() ? home_ : cluster_.nodes[static_cast<size_t>(end)].region;
  }

  const ClusterSpec& cluster_;
  std::string home_;
  std::map<std::pair<int, int>, int> trunks_;
};

int End(const ClusterSpec& cluster, const Plan& plan, const std::optional<int>& stage) {
  return stage ? plan.stages[static_cast<size_t>(*stage)].nodes.front() : cluster.coordinator();
}

double Weight(const ClusterSpec& cluster, int from, int to, const TokenBytes& bytes) {
  const bool ends = from == cluster.coordinator() || to == cluster.coordinator();
  return static_cast<double>(ends ? bytes.coordinator : bytes.activation);
}

// Links of a trunk loaded beyond `limit` get their current load divided by the overload. The
// trunk's other links get nothing, so that another flow cannot overload it.
void Narrow(const ClusterSpec& cluster, const Plan& plan, const std::vector<TrunkLoad>& loads,
            double limit, FlowProblem& problem) {
  const Directions directions(cluster);
  std::map<std::pair<int, int>, double> flows;
  for (const PlanEdge& edge : plan.edges) {
    flows[{End(cluster, plan, edge.from), End(cluster, plan, edge.to)}] += edge.tokens_per_s;
  }
  for (const LinkSpec& link : cluster.links) {
    const auto way = directions.Find(link.from, link.to);
    if (!way) continue;
    for (const TrunkLoad& load : loads) {
      if (std::pair(load.trunk, load.forward) != *way || load.ratio() <= limit) continue;
      const auto flow = flows.find({link.from, link.to});
      const size_t side = problem.nodes.size() + 1;
      problem
          .link_tokens_per_s[static_cast<size_t>(link.from) * side + static_cast<size_t>(link.to)] =
          flow == flows.end() ? 0 : flow->second / std::max(1.0, load.ratio());
    }
  }
}

// Blocks activations on trunks. Tokens to and from the coordinator are small and may cross them.
FlowProblem AroundTrunks(const FlowProblem& problem, const ClusterSpec& cluster) {
  FlowProblem out = problem;
  const size_t side = problem.nodes.size() + 1;
  for (const LinkSpec& link : cluster.links) {
    if (!link.trunk || link.from == cluster.coordinator() || link.to == cluster.coordinator()) {
      continue;
    }
    out.link_tokens_per_s[static_cast<size_t>(link.from) * side + static_cast<size_t>(link.to)] = 0;
  }
  return out;
}

bool Fits(const std::vector<TrunkLoad>& loads) {
  return std::all_of(loads.begin(), loads.end(),
                     [](const TrunkLoad& load) { return load.ratio() <= kFits; });
}

}  // namespace

std::vector<std::optional<TrunkDirection>> TrunkDirections(const ClusterSpec& cluster) {
  const Directions directions(cluster);
  std::vector<std::optional<TrunkDirection>> ways;
  for (const LinkSpec& link : cluster.links) ways.push_back(directions.Find(link.from, link.to));
  return ways;
}

std::vector<TrunkLoad> TrunkLoads(const ClusterSpec& cluster, const Plan& plan,
                                  const TokenBytes& bytes) {
  const Directions directions(cluster);
  std::map<std::pair<int, bool>, double> sums;
  for (const PlanEdge& edge : plan.edges) {
    const int from = End(cluster, plan, edge.from), to = End(cluster, plan, edge.to);
    const auto way = directions.Find(from, to);
    if (way) sums[*way] += edge.tokens_per_s * Weight(cluster, from, to, bytes);
  }
  std::vector<TrunkLoad> loads;
  for (const auto& [way, sum] : sums) {
    loads.push_back(
        {way.first, way.second, sum, cluster.trunks[static_cast<size_t>(way.first)].bytes_per_s});
  }
  return loads;
}

FlowProblem WithTrunksFull(const FlowProblem& problem, const ClusterSpec& cluster, const Plan& plan,
                           const TokenBytes& bytes) {
  FlowProblem out = problem;
  Narrow(cluster, plan, TrunkLoads(cluster, plan, bytes), kFull, out);
  return out;
}

PlacementFlow FlowWithinTrunks(const FlowProblem& problem, const ClusterSpec& cluster,
                               const TokenBytes& bytes, const Placement& placement) {
  FlowProblem narrowed = problem;
  PlacementFlow flow = SolvePlacementFlow(problem, placement);
  for (int round = 0; round < kRoundsMax; ++round) {
    const Plan plan = MakePlan(problem, placement, flow, 0);
    const auto loads = TrunkLoads(cluster, plan, bytes);
    if (Fits(loads)) break;
    Narrow(cluster, plan, loads, kFits, narrowed);
    flow = SolvePlacementFlow(narrowed, placement);
  }
  return flow;
}

Result<PlanOutcome> PlanWithinTrunks(const FlowProblem& problem, const ClusterSpec& cluster,
                                     const TokenBytes& bytes, const PlanOptions& options) {
  PlanOptions search = options;
  if (!cluster.trunks.empty() && options.time_limit_s) {
    search.time_limit_s = *options.time_limit_s * kTrunksFirst;
  }
  MR_ASSIGN_OR_RETURN(PlanOutcome outcome, PlanByFlow(problem, search));
  const double bound = outcome.bound;
  const std::string bound_method = outcome.bound_method;
  std::optional<PlanOutcome> around;
  if (!Fits(TrunkLoads(cluster, outcome.plan, bytes))) {
    if (options.time_limit_s) search.time_limit_s = *options.time_limit_s * kAroundSearch;
    // It is no error if nothing flows around the trunks.
    auto found = PlanByFlow(AroundTrunks(problem, cluster), search);
    if (found.ok() && Fits(TrunkLoads(cluster, found->plan, bytes))) around = std::move(*found);
  }
  FlowProblem narrowed = problem;
  for (int round = 0; round < kRoundsMax; ++round) {
    const auto loads = TrunkLoads(cluster, outcome.plan, bytes);
    if (Fits(loads)) break;
    Narrow(cluster, outcome.plan, loads, kFits, narrowed);
    search.warm_starts = {outcome.placement};
    if (options.time_limit_s) {
      search.time_limit_s = *options.time_limit_s * (1 - kTrunksFirst - kAroundSearch) / kRoundsMax;
    }
    const double elapsed_s = outcome.elapsed_s;
    MR_ASSIGN_OR_RETURN(outcome, PlanByFlow(narrowed, search));
    outcome.elapsed_s += elapsed_s;
    outcome.method += " within the trunks";
  }
  if (around && (!Fits(TrunkLoads(cluster, outcome.plan, bytes)) ||
                 around->plan.tokens_per_s > outcome.plan.tokens_per_s)) {
    around->elapsed_s += outcome.elapsed_s;
    around->method += " around the trunks";
    outcome = std::move(*around);
  }
  if (!Fits(TrunkLoads(cluster, outcome.plan, bytes))) {
    return Internal("the plan does not fit the trunks of the cluster");
  }
  outcome.bound = bound;
  outcome.bound_method = bound_method;
  outcome.plan.tokens_per_s_bound = bound;
  return outcome;
}

}  // namespace millrace::plan
