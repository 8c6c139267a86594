// FlowProblem: the flow planner's input. It has nodes with their tokens per second for every number
// of layers held, and the tokens per second of each link (Helix, ASPLOS'25, section 4). It is
// independent of files and byte units; conversions create it. Plain values; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/plan.h"

namespace millrace::plan {

inline constexpr int kPlanLayersMax = 1024;
inline constexpr double kTokenRateMax = 1e15;  // beyond it, arithmetic loses whole tokens

// One machine. Nodes of one kind in one region are interchangeable.
struct FlowNode {
  std::string name;
  std::string kind;                  // kind of device: "A100"
  std::string region;                // empty if there is only one
  std::vector<double> tokens_per_s;  // [k - 1]: T(k), prompt and decode together, holding k layers
  // The same for prompts alone and for outputs alone, for stages with a role. Empty: unknown.
  std::vector<double> prefill_tokens_per_s = {}, decode_tokens_per_s = {};
  int devices = 1;  // alike, behind one fast link; all of them compute each layer together
  // That fit its memory if several stages share it: maybe more than the model has. At least
  // max_layers().
  int room_layers = 0;

  int max_layers() const { return static_cast<int>(tokens_per_s.size()); }
  // REQUIRES: 1 <= layers <= max_layers().
  double TokensPerS(int layers) const { return tokens_per_s[layers - 1]; }
};

struct FlowProblem {
  std::string cluster, model;
  int num_layers = 0;
  bool partial_inference = true;  // a node may run only some of its layers
  std::vector<FlowNode> nodes;
  // (n + 1) x (n + 1), row = sender, column = receiver. The last of each is the coordinator, where
  // requests enter and tokens return. Zero: no connection.
  std::vector<double> link_tokens_per_s;
  // The KV of one token in one layer takes as long on a link as this many tokens. Zero: free.
  double kv_layer_tokens = 0;

  int num_nodes() const { return static_cast<int>(nodes.size()); }
  int coordinator() const { return num_nodes(); }
  double Link(int from, int to) const { return link_tokens_per_s[from * (num_nodes() + 1) + to]; }
};

// The layers that each node holds, by node. An empty range: the node is unused.
using Placement = std::vector<LayerRange>;

// Reports what is wrong with `problem`: sizes, numbers out of range, or memories that together hold
// fewer layers than the model has.
Status ValidateFlowProblem(const FlowProblem& problem);

// Checks for one range per node, within the model and the node's memory.
Status ValidatePlacement(const FlowProblem& problem, const Placement& placement);

// Whether a request whose first layers, up to the end of `a`, are done can continue at a node that
// holds `b`. Ends grow along every edge, so the graph has no cycle.
inline bool CanFollow(const LayerRange& a, const LayerRange& b, bool partial_inference) {
  return partial_inference ? b.begin <= a.end && a.end < b.end : b.begin == a.end;
}

// "A100" if every node of the kind is in one region, else "A100 in r1".
std::string NodeLabel(const FlowProblem& problem, int node);

}  // namespace millrace::plan
