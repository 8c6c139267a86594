#include <vector>

#include "plan/max_flow.h"
#include "sim/compat/helix_cluster.h"

namespace millrace::sim {
namespace {

// Bytes of one token over a link: activations go only between nodes.
double TokenBytes(const HelixModel& model, const HelixCluster& cluster, const HelixLink& link) {
  const bool inner = link.from != cluster.coordinator() && link.to != cluster.coordinator();
  return model.token_bytes + (inner ? model.activation_bytes : 0);
}

}  // namespace

double PlanFlows(const HelixModel& model, const HelixFleet& fleet, HelixCluster* cluster) {
  const auto throughput = HelixThroughput(model, fleet);
  const int n = cluster->coordinator();
  // Node v enters at 2v and leaves at 2v + 1; the coordinator sends from 2n + 1 and receives at 2n.
  // A node's card carries activations unless all its links on that side lead to the coordinator.
  std::vector<bool> inner_in(static_cast<size_t>(n)), inner_out(static_cast<size_t>(n));
  for (const HelixLink& link : cluster->links) {
    if (link.from == n || link.to == n) continue;
    inner_out[static_cast<size_t>(link.from)] = true;
    inner_in[static_cast<size_t>(link.to)] = true;
  }
  plan::FlowNetwork network(2 * n + 2);
  const double inner_bytes = model.token_bytes + model.activation_bytes;
  for (int v = 0; v < n; ++v) {
    const auto i = static_cast<size_t>(v);
    const HelixNode& node = cluster->nodes[i];
    const double in = node.nic_in_bytes_per_s / (inner_in[i] ? inner_bytes : model.token_bytes);
    const double out = node.nic_out_bytes_per_s / (inner_out[i] ? inner_bytes : model.token_bytes);
    const double compute = throughput.at(node.gpu)[static_cast<size_t>(node.layers.size() - 1)];
    network.AddEdge(2 * v, 2 * v + 1, std::min({in, out, compute}));
  }
  std::vector<int> edges;
  for (const HelixLink& link : cluster->links) {
    edges.push_back(network.AddEdge(2 * link.from + 1, 2 * link.to,
                                    link.bytes_per_s / TokenBytes(model, *cluster, link)));
  }
  const double value = network.Solve(2 * n + 1, 2 * n);
  for (size_t i = 0; i < edges.size(); ++i) {
    cluster->links[i].flow_tokens_per_s = network.EdgeFlow(edges[i]);
  }
  return value;
}

}  // namespace millrace::sim
