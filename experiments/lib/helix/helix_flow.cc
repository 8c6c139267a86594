#include <vector>

#include "experiments/lib/helix/helix_cluster.h"
#include "experiments/lib/helix/ordered_flow.h"

namespace millrace::experiments::helix {
namespace {

// The vertices in the original's order, which determines its choice among equal flows.
enum : int { kSource, kSourceOut, kSinkIn, kSink, kFirstNode };
enum : int { kIn, kStart, kEnd, kOut, kPerNode };

int Vertex(int node, int which) { return kFirstNode + kPerNode * node + which; }

}  // namespace

double PlanFlows(const HelixModel& model, const HelixFleet& fleet, HelixCluster* cluster) {
  const auto throughput = HelixThroughput(model, fleet);
  const int n = cluster->coordinator();
  const double token_bytes = model.token_bytes;
  const double inner_bytes = model.token_bytes + model.activation_bytes;
  // A node's card carries activations unless all its links on that side lead to the coordinator.
  std::vector<bool> inner_in(static_cast<size_t>(n)), inner_out(static_cast<size_t>(n));
  for (const HelixLink& link : cluster->links) {
    if (link.from == n || link.to == n) continue;
    inner_out[static_cast<size_t>(link.from)] = true;
    inner_in[static_cast<size_t>(link.to)] = true;
  }
  OrderedFlow network(Vertex(n, 0));
  network.AddEdge(kSource, kSourceOut, cluster->nic_out_bytes_per_s / token_bytes);
  network.AddEdge(kSinkIn, kSink, cluster->nic_in_bytes_per_s / token_bytes);
  for (int v = 0; v < n; ++v) {
    const auto i = static_cast<size_t>(v);
    const HelixNode& node = cluster->nodes[i];
    const auto& tokens_per_s = throughput.at(node.gpu);
    MR_CHECK(node.layers.size() <= static_cast<int>(tokens_per_s.size()));
    network.AddEdge(Vertex(v, kIn), Vertex(v, kStart),
                    node.nic_in_bytes_per_s / (inner_in[i] ? inner_bytes : token_bytes));
    network.AddEdge(Vertex(v, kStart), Vertex(v, kEnd),
                    tokens_per_s[static_cast<size_t>(node.layers.size() - 1)]);
    network.AddEdge(Vertex(v, kEnd), Vertex(v, kOut),
                    node.nic_out_bytes_per_s / (inner_out[i] ? inner_bytes : token_bytes));
  }
  std::vector<int> edges;
  for (const HelixLink& link : cluster->links) {
    const bool inner = link.from != n && link.to != n;
    edges.push_back(network.AddEdge(link.from == n ? kSourceOut : Vertex(link.from, kOut),
                                    link.to == n ? kSinkIn : Vertex(link.to, kIn),
                                    link.bytes_per_s / (inner ? inner_bytes : token_bytes)));
  }
  const double value = network.Solve(kSource, kSink);
  for (size_t i = 0; i < edges.size(); ++i) {
    cluster->links[i].flow_tokens_per_s = network.EdgeFlow(edges[i]);
  }
  return value;
}

}  // namespace millrace::experiments::helix
