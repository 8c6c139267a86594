#include "plan/flow/part_of_cluster.h"

#include <optional>
#include <utility>
#include <vector>

namespace millrace::plan {

ClusterSpec PartOfCluster(const ClusterSpec& cluster,
                          const std::function<bool(const NodeSpec&)>& keep) {
  ClusterSpec part;
  part.name = cluster.name;
  part.trunks = cluster.trunks;
  part.server = cluster.server;
  std::vector<std::optional<int>> moved(cluster.nodes.size());
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    if (!keep(cluster.nodes[i])) continue;
    moved[i] = static_cast<int>(part.nodes.size());
    part.nodes.push_back(cluster.nodes[i]);
  }
  moved.emplace_back(part.coordinator());
  for (LinkSpec link : cluster.links) {
    const auto from = moved[static_cast<size_t>(link.from)];
    const auto to = moved[static_cast<size_t>(link.to)];
    if (!from || !to) continue;
    link.from = *from;
    link.to = *to;
    part.links.push_back(link);
  }
  for (const std::vector<NodeIndex>& group : cluster.kv_affinity) {
    std::vector<NodeIndex> left;
    for (const NodeIndex node : group) {
      if (const auto to = moved[static_cast<size_t>(node)]) left.push_back(*to);
    }
    part.kv_affinity.push_back(std::move(left));
  }
  return part;
}

}  // namespace millrace::plan
