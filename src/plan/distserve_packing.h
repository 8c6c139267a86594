// How many instances fit into alike nodes when a stage (a tensor-parallel group) must stay inside
// one. Arithmetic of the DistServe search. Pure; any thread.
#pragma once

#include <vector>

#include "core/model_spec.h"
#include "plan/distserve.h"

namespace millrace::plan {

struct NodeGrid {
  int nodes = 1, devices_per_node = 1;
  int devices() const { return nodes * devices_per_node; }
};

// Instances of one kind; their stages may lie in different nodes.
int MaxInstances(const NodeGrid& grid, const Parallel& parallel);

// For every number of stages of width `first` (the index): the most stages of width `second` that
// fit beside them. Its size ends where no more of the first fit.
std::vector<int> MaxStagesBeside(const NodeGrid& grid, int first, int second);

// Units of Algorithm 2: `segments` nodes each, `segment_devices` in each of them.
int MaxSegmentedUnits(const NodeGrid& grid, int segments, int segment_devices);

// The parallelisms of a model on these nodes: the width divides the heads, the stages divide the
// layers, and a share of the memory (`weights_share_max`) is enough for the weights of a device.
std::vector<Parallel> LegalParallels(const ModelSpec& model, int64_t device_memory_bytes,
                                     const NodeGrid& grid, double weights_share_max = 0.9);

}  // namespace millrace::plan
