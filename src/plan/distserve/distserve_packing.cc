#include "plan/distserve/distserve_packing.h"

#include <algorithm>

namespace millrace::plan {

int MaxInstances(const NodeGrid& grid, const Parallel& parallel) {
  return grid.nodes * (grid.devices_per_node / parallel.tensor) / parallel.pipeline;
}

std::vector<int> MaxStagesBeside(const NodeGrid& grid, int first, int second) {
  const int per_node = grid.devices_per_node / first;
  std::vector<int> best(1, 0);
  for (int node = 0; node < grid.nodes; ++node) {
    std::vector<int> with(best.size() + per_node, 0);
    for (size_t have = 0; have < best.size(); ++have) {
      for (int more = 0; more <= per_node; ++more) {
        const int beside = (grid.devices_per_node - more * first) / second;
        int& slot = with[have + more];
        slot = std::max(slot, best[have] + beside);
      }
    }
    best = std::move(with);
  }
  return best;
}

int MaxSegmentedUnits(const NodeGrid& grid, int segments, int segment_devices) {
  return (grid.nodes / segments) * (grid.devices_per_node / segment_devices);
}

std::vector<Parallel> LegalParallels(const ModelSpec& model, int64_t device_memory_bytes,
                                     const NodeGrid& grid, double weights_share_max) {
  std::vector<Parallel> legal;
  const double room = weights_share_max * static_cast<double>(device_memory_bytes);
  for (int tensor = 1; tensor <= grid.devices_per_node; ++tensor) {
    if (model.num_heads % tensor != 0) continue;
    for (int pipeline = 1; pipeline <= model.num_layers; ++pipeline) {
      const Parallel parallel{tensor, pipeline};
      if (model.num_layers % pipeline != 0 || MaxInstances(grid, parallel) == 0) continue;
      if (static_cast<double>(model.weight_bytes) / parallel.devices() > room) continue;
      legal.push_back(parallel);
    }
  }
  return legal;
}

}  // namespace millrace::plan
