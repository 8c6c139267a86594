#include "plan/flow/flow_problem.h"

#include <fmt/format.h>

#include <cmath>

namespace millrace::plan {
namespace {

bool IsRate(double value) { return std::isfinite(value) && value >= 0 && value <= kTokenRateMax; }

Status ValidateNode(const FlowNode& node, int num_layers) {
  if (node.max_layers() > num_layers) {
    return InvalidArgument(fmt::format("node {} has rates for {} layers and the model has {}",
                                       node.name, node.max_layers(), num_layers));
  }
  for (int k = 1; k <= node.max_layers(); ++k) {
    if (!IsRate(node.TokensPerS(k)) || node.TokensPerS(k) == 0) {
      return InvalidArgument(
          fmt::format("node {}: {} tokens/s with {} layers; a rate is above 0 and at most {:g}",
                      node.name, node.TokensPerS(k), k, kTokenRateMax));
    }
  }
  return OkStatus();
}

}  // namespace

Status ValidateFlowProblem(const FlowProblem& problem) {
  const int n = problem.num_nodes();
  if (problem.num_layers < 1 || problem.num_layers > kPlanLayersMax) {
    return InvalidArgument(fmt::format("the model has {} layers; 1 to {} can be planned",
                                       problem.num_layers, kPlanLayersMax));
  }
  if (n < 1 || n > ClusterSpec::kNodesMax) {
    return InvalidArgument(
        fmt::format("the cluster has {} nodes; 1 to {} can be planned", n, ClusterSpec::kNodesMax));
  }
  const size_t cells = static_cast<size_t>(n + 1) * (n + 1);
  if (problem.link_tokens_per_s.size() != cells) {
    return InvalidArgument(fmt::format("the link table has {} cells; {} nodes need {}",
                                       problem.link_tokens_per_s.size(), n, cells));
  }
  for (double rate : problem.link_tokens_per_s) {
    if (!IsRate(rate)) {
      return InvalidArgument(
          fmt::format("a link of {} tokens/s; a rate is 0 to {:g}", rate, kTokenRateMax));
    }
  }
  int64_t layers = 0;
  for (const FlowNode& node : problem.nodes) {
    MR_RETURN_IF_ERROR(ValidateNode(node, problem.num_layers));
    layers += node.max_layers();
  }
  if (layers < problem.num_layers) {
    return InvalidArgument(
        fmt::format("the model has {} layers and all {} nodes together hold {} at most: add memory "
                    "for {} more",
                    problem.num_layers, n, layers, problem.num_layers - layers));
  }
  return OkStatus();
}

Status ValidatePlacement(const FlowProblem& problem, const Placement& placement) {
  if (static_cast<int>(placement.size()) != problem.num_nodes()) {
    return InvalidArgument(fmt::format("the placement names {} nodes and the cluster has {}",
                                       placement.size(), problem.num_nodes()));
  }
  for (int i = 0; i < problem.num_nodes(); ++i) {
    const LayerRange range = placement[i];
    if (range == LayerRange{}) continue;
    if (range.begin < 0 || range.begin > range.end || range.end > problem.num_layers ||
        range.size() > problem.nodes[i].max_layers()) {
      return InvalidArgument(fmt::format("node {} cannot hold [{}, {}): {} layers, {} at most",
                                         problem.nodes[i].name, range.begin, range.end,
                                         problem.num_layers, problem.nodes[i].max_layers()));
    }
  }
  return OkStatus();
}

std::string NodeLabel(const FlowProblem& problem, int node) {
  const FlowNode& it = problem.nodes[node];
  for (const FlowNode& other : problem.nodes) {
    if (other.kind == it.kind && other.region != it.region) {
      return fmt::format("{} in {}", it.kind, it.region);
    }
  }
  return it.kind;
}

}  // namespace millrace::plan
