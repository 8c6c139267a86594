#include "plan/flow/placement_flow.h"

#include "base/check.h"
#include "plan/flow/max_flow.h"

namespace millrace::plan {
namespace {

// Vertices: 2i is node i's entry, 2i + 1 its exit, then source and sink.
struct Built {
  struct Link {
    std::optional<int> from, to;
    int edge = 0;
    double capacity = 0;
  };
  explicit Built(int num_nodes) : network(2 * num_nodes + 2) {}
  FlowNetwork network;
  std::vector<Link> links;  // a node's own edge has from == to
};

Built Build(const FlowProblem& problem, const Placement& placement) {
  const int n = problem.num_nodes(), coordinator = problem.coordinator();
  const int source = 2 * n, sink = 2 * n + 1;
  Built built(n);
  const auto add = [&](std::optional<int> from, std::optional<int> to, int u, int v, double cap) {
    if (cap > 0) built.links.push_back({from, to, built.network.AddEdge(u, v, cap), cap});
  };
  for (int i = 0; i < n; ++i) {
    if (placement[i].begin == 0 && placement[i].size() > 0) {
      add(std::nullopt, i, source, 2 * i, problem.Link(coordinator, i));
    }
  }
  for (int i = 0; i < n; ++i) {
    const LayerRange& range = placement[i];
    if (range.size() <= 0) continue;
    MR_CHECK(range.begin >= 0 && range.end <= problem.num_layers &&
             range.size() <= problem.nodes[i].max_layers())
        << "node " << i << " holds [" << range.begin << ", " << range.end << ")";
    add(i, i, 2 * i, 2 * i + 1, problem.nodes[i].TokensPerS(range.size()));
    for (int j = 0; j < n; ++j) {
      if (j == i || placement[j].size() <= 0) continue;
      if (!CanFollow(range, placement[j], problem.partial_inference)) continue;
      add(i, j, 2 * i + 1, 2 * j, problem.Link(i, j));
    }
    if (range.end == problem.num_layers) {
      add(i, std::nullopt, 2 * i + 1, sink, problem.Link(i, coordinator));
    }
  }
  return built;
}

}  // namespace

PlacementFlow SolvePlacementFlow(const FlowProblem& problem, const Placement& placement) {
  const int n = problem.num_nodes();
  MR_CHECK(static_cast<int>(placement.size()) == n);
  Built built = Build(problem, placement);
  PlacementFlow result;
  result.tokens_per_s = built.network.Solve(2 * n, 2 * n + 1);
  result.node_tokens_per_s.assign(n, 0);
  for (const Built::Link& link : built.links) {
    const double flow = built.network.EdgeFlow(link.edge);
    const bool is_node = link.from == link.to;
    if (flow > kFlowMin) {
      if (is_node) {
        result.node_tokens_per_s[*link.from] = flow;
      } else {
        result.edges.push_back({link.from, link.to, flow});
      }
    }
    const int u = !link.from ? 2 * n : 2 * *link.from + (is_node ? 0 : 1);
    const int v = !link.to ? 2 * n + 1 : 2 * *link.to + (is_node ? 1 : 0);
    if (built.network.SourceSide(u) && !built.network.SourceSide(v)) {
      result.cut.push_back({link.from, link.to, link.capacity});
    }
  }
  return result;
}

}  // namespace millrace::plan
