// FlowProblem: what the flow planner works on: nodes with their tokens per second for every number
// of layers held, and what each link carries, in tokens per second (Helix, ASPLOS'25, section 4).
// Independent of files and units of bytes: conversions make it. Plain values; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/plan.h"

namespace millrace::plan {

inline constexpr int kPlanLayersMax = 1024;
inline constexpr double kTokenRateMax = 1e15;  // beyond it the arithmetic loses whole tokens

// One machine. Nodes of one kind in one region are interchangeable.
struct FlowNode {
  std::string name;
  std::string kind;                  // of device: "A100"
  std::string region;                // "" when there is only one
  std::vector<double> tokens_per_s;  // [k - 1]: T(k), prompt and decode together, holding k layers

  int max_layers() const { return static_cast<int>(tokens_per_s.size()); }
  // REQUIRES: 1 <= layers <= max_layers().
  double TokensPerS(int layers) const { return tokens_per_s[layers - 1]; }
};

struct FlowProblem {
  std::string cluster, model;
  int num_layers = 0;
  bool partial_inference = true;  // a node may run a part of the layers it holds
  std::vector<FlowNode> nodes;
  // (n + 1) x (n + 1), row = sender, column = receiver; the last of each is the coordinator, where
  // requests enter and tokens return. Zero: they cannot talk.
  std::vector<double> link_tokens_per_s;

  int num_nodes() const { return static_cast<int>(nodes.size()); }
  int coordinator() const { return num_nodes(); }
  double Link(int from, int to) const { return link_tokens_per_s[from * (num_nodes() + 1) + to]; }
};

// The layers each node holds, by node; an empty range: the node is unused.
using Placement = std::vector<LayerRange>;

// Says what is wrong with `problem`: sizes, numbers out of range, fewer layers in all memories
// together than the model has.
Status ValidateFlowProblem(const FlowProblem& problem);

// One range per node, within the model and the node's memory.
Status ValidatePlacement(const FlowProblem& problem, const Placement& placement);

// May a request whose first `end` layers are done at `a` go on at a node that holds `b`?
// Ends grow along every edge, so the graph has no cycle.
inline bool CanFollow(const LayerRange& a, const LayerRange& b, bool partial_inference) {
  return partial_inference ? b.begin <= a.end && a.end < b.end : b.begin == a.end;
}

// "A100" when every node of the kind is in one region, else "A100 in r1".
std::string NodeLabel(const FlowProblem& problem, int node);

}  // namespace millrace::plan
