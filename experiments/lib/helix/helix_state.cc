#include "experiments/lib/helix/helix_state.h"

#include <algorithm>

namespace millrace::experiments::helix {

HelixState::HelixState(const HelixModel& the_model, const HelixCluster& the_cluster)
    : model(the_model),
      cluster(the_cluster),
      endpoints(cluster.nodes.size() + 1),
      entry_queue(cluster.nodes.size()) {
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    endpoints[i].free_out_bytes_per_s = cluster.nodes[i].nic_out_bytes_per_s;
    endpoints[i].free_in_bytes_per_s = cluster.nodes[i].nic_in_bytes_per_s;
  }
  endpoints.back().free_out_bytes_per_s = cluster.nic_out_bytes_per_s;
  endpoints.back().free_in_bytes_per_s = cluster.nic_in_bytes_per_s;
  for (const HelixLink& link : cluster.links) {
    const auto number = static_cast<int>(links.size());
    endpoints[static_cast<size_t>(link.from)].out_links.push_back(number);
    endpoints[static_cast<size_t>(link.to)].in_links.push_back(number);
    links.push_back({.free_bytes_per_s = link.bytes_per_s});
  }
}

LayerRange HelixState::LayersAt(int from, int node) const {
  if (node == cluster.coordinator()) return {};
  const LayerRange held = cluster.nodes[static_cast<size_t>(node)].layers;
  if (from == cluster.coordinator()) return held;
  return {std::max(held.begin, cluster.nodes[static_cast<size_t>(from)].layers.end), held.end};
}

}  // namespace millrace::experiments::helix
