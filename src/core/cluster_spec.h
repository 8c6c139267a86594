// ClusterSpec: machines and the links between them, as a person described them. Pure data, without
// file format or policy: plan/ reads it from cluster.yaml or Helix's .ini; the planners and the
// simulator work on it. Values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"

namespace millrace {

// The index of a node in ClusterSpec::nodes, in [0, nodes.size()).
using NodeIndex = int32_t;

struct NodeSpec {
  std::string name;      // unique
  std::string region;    // "" when there is only one
  std::string device;    // kind, a key of the profiles: "a100-40gb", "l4", "cpu-2core"
  int device_count = 1;  // identical devices behind one fast link: tensor parallelism stays inside
  int64_t memory_bytes = 0;               // of all its devices together
  std::optional<double> nic_bytes_per_s;  // each direction; unset: never the bottleneck
  double price_usd_per_hour = 0;
  bool spot = false;          // may be taken away at short notice
  std::string numeric_class;  // workers of one class compute the same bits ("" means "any")
  std::string profile;        // text of a measurement of this node (docs/formats/profile.md); or ""
};

// The capacity of one direction between two endpoints: node indices, or coordinator().
struct LinkSpec {
  int from = 0, to = 0;
  double bytes_per_s = 0;
  Duration latency;
  std::optional<int> trunk;  // index into ClusterSpec::trunks: shared with other links
};

// A line that several links share; it bounds the sum of their traffic.
struct TrunkSpec {
  std::string name;
  double bytes_per_s = 0;  // each direction
};

// The sizes with which a server runs steps: its options of the same names, as far as they are
// known.
struct ServerSizes {
  static constexpr int kBlockSizeStep = 16;  // of the attention kernel
  static constexpr int kBlockSizeMax = 256, kNumSeqsMax = 65536;
  static constexpr int kNumBatchedTokensMax = 1 << 20, kModelLenMax = 1 << 24;

  std::optional<int> block_size, max_num_seqs, max_num_batched_tokens, max_model_len;
  std::optional<bool> enable_prefix_caching;

  friend bool operator==(const ServerSizes&, const ServerSizes&) = default;
};

struct ClusterSpec {
  static constexpr int kNodesMax = 1024;

  std::string name;
  std::vector<NodeSpec> nodes;
  std::vector<TrunkSpec> trunks;
  std::vector<LinkSpec> links;  // at most one per ordered pair; absent: no connection
  // Groups of nodes between which KV may move (DistServe's high affinity). Empty: between all.
  std::vector<std::vector<NodeIndex>> kv_affinity;
  ServerSizes server;  // of the controller that serves, or will serve, on these machines

  // The endpoint where requests enter and tokens come out: Helix's source and sink.
  int coordinator() const { return static_cast<int>(nodes.size()); }
};

}  // namespace millrace
