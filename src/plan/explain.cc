#include "plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "plan/flow_bounds.h"
#include "plan/planner.h"

namespace millrace::plan {
namespace {

std::string EndName(const FlowProblem& problem, const std::optional<int>& node) {
  return node ? NodeLabel(problem, *node) : "coordinator";
}

std::string CutName(const FlowProblem& problem, const Placement& placement, const CutEdge& edge) {
  if (!edge.is_node()) {
    return fmt::format("link {} -> {}", EndName(problem, edge.from), EndName(problem, edge.to));
  }
  const LayerRange range = placement[*edge.from];
  return fmt::format("{} with layers [{}, {})", NodeLabel(problem, *edge.from), range.begin,
                     range.end);
}

struct Group {
  int count = 0;
  double tokens_per_s = 0;
  bool is_node = false;
};

// The cut with alike members counted together, largest first.
std::vector<std::pair<std::string, Group>> GroupCut(const FlowProblem& problem,
                                                    const Placement& placement,
                                                    const PlacementFlow& flow) {
  std::map<std::string, Group> groups;
  for (const CutEdge& edge : flow.cut) {
    Group& group = groups[CutName(problem, placement, edge)];
    ++group.count;
    group.tokens_per_s += edge.capacity;
    group.is_node = edge.is_node();
  }
  std::vector<std::pair<std::string, Group>> sorted(groups.begin(), groups.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.second.tokens_per_s > b.second.tokens_per_s;
  });
  return sorted;
}

// The cluster with one more node, alike `node` in rates, links and region.
FlowProblem WithOneMore(const FlowProblem& problem, int node) {
  FlowProblem more = problem;
  const int n = problem.num_nodes();
  more.nodes.push_back(problem.nodes[node]);
  more.nodes.back().name += " (one more)";
  more.link_tokens_per_s.clear();
  const auto old = [&](int u) { return u < n ? u : u == n ? node : problem.coordinator(); };
  // The two alike are joined as a pair of their kind is, or as the node to its best peer.
  double between = 0;
  for (int v = 0; v < n; ++v) {
    if (v != node) between = std::max(between, problem.Link(node, v));
  }
  for (int u = 0; u <= n + 1; ++u) {
    for (int v = 0; v <= n + 1; ++v) {
      const bool pair = (u == n && v == node) || (u == node && v == n);
      more.link_tokens_per_s.push_back(u == v ? 0 : pair ? between : problem.Link(old(u), old(v)));
    }
  }
  return more;
}

std::vector<OneMore> TryOneMore(const FlowProblem& problem, const Placement& placement, double now,
                                const ExplainOptions& options) {
  std::map<std::string, int> kinds;  // label -> a node of it
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (problem.nodes[i].max_layers() > 0) kinds.emplace(NodeLabel(problem, i), i);
  }
  std::vector<OneMore> result;
  for (const auto& [label, node] : kinds) {
    const FlowProblem more = WithOneMore(problem, node);
    Placement start = placement;
    start.push_back({});
    PlanOptions plan_options;
    plan_options.seed = options.seed;
    plan_options.iterations = options.iterations_per_kind;
    plan_options.use_milp = false;
    plan_options.warm_starts = {start};
    const auto outcome = PlanByFlow(more, plan_options);
    if (!outcome.ok()) continue;  // nothing flows with it either
    const double flow = outcome->flow.tokens_per_s;
    result.push_back({label, flow, std::max(0.0, flow - now)});
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const OneMore& a, const OneMore& b) { return a.gain > b.gain; });
  return result;
}

}  // namespace

Explanation ExplainPlacement(const FlowProblem& problem, const Placement& placement,
                             const ExplainOptions& options) {
  const PlacementFlow flow = SolvePlacementFlow(problem, placement);
  Explanation explanation;
  explanation.tokens_per_s = flow.tokens_per_s;
  explanation.bound = SelfConsistentBound(problem);
  double compute = 0;
  const auto groups = GroupCut(problem, placement, flow);
  for (const auto& [name, group] : groups) {
    explanation.cut.push_back(
        fmt::format("{} x {}: {:.6g} tokens/s together", group.count, name, group.tokens_per_s));
    if (group.is_node) compute += group.tokens_per_s;
  }
  if (groups.empty()) {
    explanation.bottleneck = "nothing flows: no path of stages leads through all layers";
  } else {
    explanation.bottleneck = fmt::format(
        "{} bind{}: {}", compute * 2 >= flow.tokens_per_s ? "nodes" : "links",
        compute > 0 && compute < flow.tokens_per_s ? " (with others)" : "", groups.front().first);
  }
  if (options.iterations_per_kind > 0) {
    explanation.one_more = TryOneMore(problem, placement, flow.tokens_per_s, options);
  }
  return explanation;
}

}  // namespace millrace::plan
