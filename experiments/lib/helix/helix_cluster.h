// HelixCluster: nodes with their layers and the links between them, as Helix's simulator takes
// them, and its files (".cluster.ini" and placements; 1 "mbps" in them is 10^6 bytes/s). An
// imitation for comparison only. Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/plan.h"
#include "experiments/lib/helix/helix_model.h"

namespace millrace::experiments::helix {

struct HelixNode {
  std::string name, gpu;
  LayerRange layers;
  int64_t kv_entries = 0;
  double nic_in_bytes_per_s = 0, nic_out_bytes_per_s = 0;
};

// One direction between two nodes, or between a node and the coordinator.
struct HelixLink {
  int from = 0, to = 0;  // node indices, or HelixCluster::coordinator()
  double latency_s = 0;
  double bytes_per_s = 0;
  double flow_tokens_per_s = 0;  // what the plan sends over it: PlanFlows
};

struct HelixCluster {
  static constexpr int kNodesMax = 1024;

  std::vector<HelixNode> nodes;
  std::vector<HelixLink> links;
  double nic_in_bytes_per_s = 0, nic_out_bytes_per_s = 0;  // of the coordinator

  int coordinator() const { return static_cast<int>(nodes.size()); }
  HelixFleet Fleet() const;
};

// `cluster` is the text of a ".cluster.ini", `placement` that of the placement it was made for. The
// names are for errors.
Result<HelixCluster> ParseHelixCluster(std::string_view cluster, std::string_view cluster_name,
                                       std::string_view placement, std::string_view placement_name);

// Removes the links to nodes without a path back to the coordinator: a scheduler that chooses hop
// by hop would lose requests there.
void DropDeadEnds(HelixCluster* cluster);

// When the first requests arrive, as in the released scripts: one second after the last node has
// loaded its layers from disk, rounded up.
double BeginSeconds(const HelixModel& model, const HelixCluster& cluster);

// Sets every link's flow to that of a maximum flow from the coordinator back to it, with T(k) of
// `fleet` at the nodes. Returns the value of the flow in tokens per second. REQUIRES: no node holds
// more layers than its kind has data for.
double PlanFlows(const HelixModel& model, const HelixFleet& fleet, HelixCluster* cluster);

// Whether work may go from a node that holds `a` to one that holds `b`: `b` runs the layers beyond
// the end of `a`.
inline bool HelixFollows(const LayerRange& a, const LayerRange& b) {
  return b.begin <= a.end && a.end < b.end;
}

}  // namespace millrace::experiments::helix
