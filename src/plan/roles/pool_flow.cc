#include "plan/roles/pool_flow.h"

#include <algorithm>
#include <optional>

namespace millrace::plan {
namespace {

// Takes routes off the flow until little is left, each time along the largest edges.
class Routes {
 public:
  Routes(const GoodputProblem& problem, PoolFlow& pool) : problem_(problem), pool_(pool) {
    for (const FlowEdge& edge : pool.edges) left_.push_back(edge.tokens_per_s);
    stage_of_.resize(static_cast<size_t>(problem.flow.num_nodes()));
    for (size_t s = 0; s < pool.stages.size(); ++s) {
      stage_of_[static_cast<size_t>(pool.stages[s].node)] = static_cast<int>(s);
    }
  }

  // Returns the share of the flow that was found: a little may be lost by rounding.
  double Find() {
    double found = 0;
    // Every route empties an edge.
    for (size_t i = 0; i < pool_.edges.size(); ++i) {
      const auto route = Next();
      if (!route) break;
      found += route->share;
      pool_.routes.push_back(*route);
    }
    for (PoolFlow::Route& route : pool_.routes) route.share /= found;
    return found;
  }

 private:
  std::optional<size_t> Largest(const std::optional<int>& from) const {
    std::optional<size_t> found;
    for (size_t e = 0; e < left_.size(); ++e) {
      if (pool_.edges[e].from != from || left_[e] <= kFlowMin) continue;
      if (!found || left_[e] > left_[*found]) found = e;
    }
    return found;
  }

  std::optional<PoolFlow::Route> Next() {
    PoolFlow::Route route;
    std::vector<size_t> edges;
    for (std::optional<int> at;;) {
      const auto edge = Largest(at);
      if (!edge) return std::nullopt;
      edges.push_back(*edge);
      at = pool_.edges[*edge].to;
      if (!at) break;
      route.stages.push_back(stage_of_[static_cast<size_t>(*at)]);
    }
    double tokens = pool_.tokens_per_s;
    for (const size_t e : edges) tokens = std::min(tokens, left_[e]);
    for (const size_t e : edges) {
      left_[e] -= tokens;
      const int coordinator = problem_.flow.coordinator();
      const int from = pool_.edges[e].from.value_or(coordinator);
      const int to = pool_.edges[e].to.value_or(coordinator);
      route.latency_s +=
          problem_.link_latency_s[static_cast<size_t>(from * (problem_.flow.num_nodes() + 1) + to)];
      route.link_s_per_token += 1 / problem_.flow.Link(from, to);
    }
    route.share = tokens / pool_.tokens_per_s;
    return route;
  }

  const GoodputProblem& problem_;
  PoolFlow& pool_;
  std::vector<double> left_;   // by edge
  std::vector<int> stage_of_;  // by node
};

}  // namespace

PoolFlow FlowOfPool(const GoodputProblem& problem, const FlowProblem& phase,
                    const Placement& placement) {
  const PlacementFlow flow = SolvePlacementFlow(phase, placement);
  PoolFlow out;
  if (flow.tokens_per_s <= kFlowMin) return out;
  out.tokens_per_s = flow.tokens_per_s;
  out.edges = flow.edges;
  for (int i = 0; i < phase.num_nodes(); ++i) {
    if (flow.node_tokens_per_s[i] <= kFlowMin) continue;
    out.stages.push_back({.node = i,
                          .layers = placement[i].size(),
                          .first = placement[i].begin == 0,
                          .last = placement[i].end == phase.num_layers,
                          .share = flow.node_tokens_per_s[i] / flow.tokens_per_s});
  }
  if (Routes(problem, out).Find() <= 0) return {};
  return out;
}

}  // namespace millrace::plan
