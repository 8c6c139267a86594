// ClusterSpec: the machines and links there are, as a person described them. Pure data, no file
// format and no policy: plan/ reads it from cluster.yaml or Helix's .ini, the planners and the
// simulator work on it. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace millrace {

// The place of a node in ClusterSpec::nodes, in [0, nodes.size()).
using NodeIndex = int32_t;

struct NodeSpec {
  std::string name;          // unique
  std::string region;        // "" when there is only one
  std::string device;        // kind, a key of the profiles: "a100-40gb", "l4", "cpu-2core"
  int device_count = 1;      // alike devices behind one fast link: tensor parallelism stays inside
  int64_t memory_bytes = 0;  // of all its devices together
  std::optional<double> nic_bytes_per_s;  // each direction; unset: never the limit
  double price_usd_per_hour = 0;
  bool spot = false;          // may be taken away at short notice
  std::string numeric_class;  // workers of one class compute the same bits ("" means "any")
};

// What one direction of one pair can carry. Endpoints are node indices, or coordinator().
struct LinkSpec {
  int from = 0, to = 0;
  double bytes_per_s = 0;
  Duration latency;
  std::optional<int> trunk;  // index into ClusterSpec::trunks: shared with other links
};

// A line that several links share: the sum of what crosses it is bounded.
struct TrunkSpec {
  std::string name;
  double bytes_per_s = 0;  // each direction
};

struct ClusterSpec {
  static constexpr int kNodesMax = 1024;

  std::string name;
  std::vector<NodeSpec> nodes;
  std::vector<TrunkSpec> trunks;
  std::vector<LinkSpec> links;  // at most one per ordered pair; absent: they cannot talk
  // Groups of nodes between which KV may move (DistServe's high affinity). Empty: between all.
  std::vector<std::vector<NodeIndex>> kv_affinity;

  // The endpoint where requests enter and tokens come out: Helix's source and sink.
  int coordinator() const { return static_cast<int>(nodes.size()); }
};

}  // namespace millrace
