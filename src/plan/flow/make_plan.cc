// Converts a placement and its flow to the types of the router and the simulator.
#include <fmt/format.h>

#include "plan/flow/planner.h"

namespace millrace::plan {
namespace {

std::string CutEdgeName(const FlowProblem& problem, const CutEdge& edge) {
  const auto name = [&](const std::optional<int>& node) {
    return node ? problem.nodes[*node].name : std::string("the coordinator");
  };
  return edge.is_node() ? name(edge.from) : name(edge.from) + " -> " + name(edge.to);
}

std::string WhyUnused(const FlowProblem& problem, const Placement& placement,
                      const PlacementFlow& flow, int node) {
  if (problem.nodes[node].max_layers() == 0) return "its memory cannot hold one layer";
  if (flow.cut.empty()) return "no path through it reaches the last layer";
  const std::string binding =
      fmt::format("{}{}", CutEdgeName(problem, flow.cut.front()),
                  flow.cut.size() > 1 ? fmt::format(" and {} more", flow.cut.size() - 1) : "");
  if (placement[node].size() > 0) {
    return fmt::format("its layers [{}, {}) would carry nothing: {} tokens/s are bound by {}",
                       placement[node].begin, placement[node].end, flow.tokens_per_s, binding);
  }
  return fmt::format("no place found where it raises the flow of {:.6g} tokens/s, bound by {}",
                     flow.tokens_per_s, binding);
}

}  // namespace

Plan MakePlan(const FlowProblem& problem, const Placement& placement, const PlacementFlow& flow,
              double bound) {
  Plan plan;
  plan.model = problem.model;
  plan.cluster = problem.cluster;
  plan.num_layers = problem.num_layers;
  plan.partial_inference = problem.partial_inference;
  plan.tokens_per_s = flow.tokens_per_s;
  plan.tokens_per_s_bound = bound;
  std::vector<std::optional<int>> stage(problem.num_nodes());
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (placement[i].size() > 0 && flow.node_tokens_per_s[i] > 0) {
      stage[i] = static_cast<int>(plan.stages.size());
      plan.stages.push_back(
          {.nodes = {i}, .tensor_parallel = problem.nodes[i].devices, .layers = placement[i]});
    } else {
      plan.unused.push_back({i, WhyUnused(problem, placement, flow, i)});
    }
  }
  const auto stage_of = [&](const std::optional<int>& node) {
    return node ? stage[*node] : std::optional<int>();
  };
  for (const FlowEdge& edge : flow.edges) {
    plan.edges.push_back({stage_of(edge.from), stage_of(edge.to), edge.tokens_per_s});
  }
  return plan;
}

}  // namespace millrace::plan
