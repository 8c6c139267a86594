// How many instances fit into alike nodes if each stage (a tensor-parallel group) must stay inside
// one node. Arithmetic of the DistServe search. Pure; any thread.
#pragma once

#include <vector>

#include "core/model_spec.h"
#include "plan/distserve/distserve.h"

namespace millrace::plan {

struct NodeGrid {
  int nodes = 1, devices_per_node = 1;
  int devices() const { return nodes * devices_per_node; }
};

// Instances of one kind; their stages may lie in different nodes.
int MaxInstances(const NodeGrid& grid, const Parallel& parallel);

// Index i holds the most stages of width `second` that fit beside i stages of width `first`. The
// vector ends where no more stages of width `first` fit.
std::vector<int> MaxStagesBeside(const NodeGrid& grid, int first, int second);

// How many units of Algorithm 2 fit: each takes `segments` nodes and `segment_devices` devices in
// each.
int MaxSegmentedUnits(const NodeGrid& grid, int segments, int segment_devices);

// The parallelisms of a model on these nodes: the width divides the heads, the stages divide the
// layers, and each device's weights fit in the share `weights_share_max` of its memory.
std::vector<Parallel> LegalParallels(const ModelSpec& model, int64_t device_memory_bytes,
                                     const NodeGrid& grid, double weights_share_max = 0.9);

}  // namespace millrace::plan
