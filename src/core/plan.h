// Plan: which stage holds which layers, in which role, and how much flows between stages. A planner
// makes it, an independent checker verifies it, the router and the simulator follow it. Route: the
// path of one request through the stages. Pure data; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/cluster_spec.h"
#include "core/layer_range.h"

namespace millrace {

enum class StageRole : uint8_t { kBoth, kPrefill, kDecode };

// A worker, or a tensor-parallel group of workers, that holds layers.
struct StagePlan {
  std::vector<NodeIndex> nodes;  // one, unless tensor parallelism spans nodes
  int tensor_parallel = 1;       // devices that share each layer
  LayerRange layers;
  StageRole role = StageRole::kBoth;
};

// What an edge carries. A request takes one of two ways from the coordinator and back to it: along
// kBoth edges with its prompt and its answer, or along kPrefill edges with its prompt and then
// along kDecode edges with its answer. In between, kHandOver edges carry the KV of its prompt, from
// each stage of the prefill to the stages of the decode that hold the same layers (DistServe
// section 3).
enum class EdgePhase : uint8_t { kBoth, kPrefill, kHandOver, kDecode };

// Tokens per second that flow from one stage to another: prompt and output (kBoth), prompt
// (kPrefill, kHandOver), or output (kDecode). The ends are indices into Plan::stages; unset: the
// coordinator, where requests enter and tokens return.
struct PlanEdge {
  std::optional<int> from, to;
  double tokens_per_s = 0;
  EdgePhase phase = EdgePhase::kBoth;
};

// A node that the plan does not use, and why.
struct UnusedNode {
  NodeIndex node = 0;
  std::string reason;
};

struct Plan {
  int64_t epoch = 0;
  std::string model;    // the name the plan was made for
  std::string cluster;  // ClusterSpec::name
  int num_layers = 0;
  bool partial_inference = true;  // a stage may run a part of the layers it holds
  std::vector<StagePlan> stages;
  std::vector<PlanEdge> edges;  // without kHandOver edges, KV may go from any stage to any other
  std::vector<UnusedNode> unused;
  double tokens_per_s = 0;        // the flow of the edges out of the coordinator
  double tokens_per_s_bound = 0;  // upper bound for any plan on this cluster
};

// One request's route: consecutive layer ranges that cover [0, num_layers), each within its
// stage's.
struct Hop {
  int stage = 0;  // index into Plan::stages
  LayerRange layers;
};
using Route = std::vector<Hop>;

}  // namespace millrace
