// PlacementFlow: what a placement carries, by Helix's graph abstraction (ASPLOS'25, section 4.2)
// and its maximum flow. Every node is an edge of capacity T(layers held). Requests enter at layer
// 0, leave at the last layer, and move between nodes whose ranges adjoin. Values; any thread.
#pragma once

#include <optional>
#include <vector>

#include "plan/flow/flow_problem.h"

namespace millrace::plan {

inline constexpr double kFlowMin = 1e-6;  // tokens/s: smaller flows are rounding and are dropped

// A flow between nodes; an unset end is the coordinator.
struct FlowEdge {
  std::optional<int> from, to;
  double tokens_per_s = 0;
};

// One saturated edge of the minimum cut: a node's compute (to == from), or a link.
struct CutEdge {
  std::optional<int> from, to;
  double capacity = 0;
  bool is_node() const { return from == to; }
};

struct PlacementFlow {
  double tokens_per_s = 0;
  std::vector<FlowEdge> edges;            // those above kFlowMin, by (from, to)
  std::vector<double> node_tokens_per_s;  // through each node
  std::vector<CutEdge> cut;               // their capacities sum to tokens_per_s
};

// REQUIRES: a valid problem; one range per node, within [0, L) and the node's max_layers.
PlacementFlow SolvePlacementFlow(const FlowProblem& problem, const Placement& placement);

}  // namespace millrace::plan
