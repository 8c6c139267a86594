// What must move between two configurations, from where, in which order, and how long it takes:
// SpotServe's migration planner (section 3.4, Algorithm 2). Only missing data moves, once. KV moves
// first, beginning with sources under notice; then layers, in an order that bounds every device's
// memory.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "experiments/lib/spotserve/mapping.h"

namespace millrace::experiments::spotserve {

struct MigrationOptions {
  // While layers move, a device may exceed its old share by this multiple of it. 0, the published
  // default, means never more than before.
  double memory_tolerance = 0;
  double between_bytes_per_s = 6.25e9;  // between machines: 50 Gb/s, as the released code assumes
  double within_bytes_per_s = 6.25e9;   // between devices of one machine
  double fixed_s = 0.5;                 // for stopping and starting engines
};

enum class TransferKind : uint8_t { kKv, kEmbedding, kLayer, kHead };

struct DeviceRef {
  int instance = 0, device = 0;
  friend auto operator<=>(const DeviceRef&, const DeviceRef&) = default;
};

// The device that needs a piece pulls it.
struct Transfer {
  TransferKind kind = TransferKind::kLayer;
  std::optional<DeviceRef> from;  // none: no device holds it any more; comes from storage
  DeviceRef to;
  int layer = 0;      // for kLayer and kKv
  ShardRange shards;  // for kLayer and kKv
  int64_t bytes = 0;
  bool prior = false;  // the source is under notice
};

// The order in which whole layers move (Algorithm 2).
struct LayerOrder {
  std::vector<int> layers;
  bool front_to_back = true;  // no layer had to wait for memory
  bool within_bound = true;   // the memory bound held throughout
  double peak_layers = 0;     // highest holding beyond a device's old share, in layers
};

struct Migration {
  std::vector<Transfer> transfers;  // in starting order
  LayerOrder order;
  int64_t bytes = 0;          // total
  int64_t kv_bytes = 0;       // cache part of `bytes`
  int64_t storage_bytes = 0;  // part of `bytes` from storage
  double seconds = 0;         // T_mig, without storage
  std::vector<bool> kv_lost;  // by new pipeline: part of the inherited cache is lost
};

// REQUIRES: `mapping` is the answer to `request`.
Migration PlanMigration(const MapRequest& request, const Mapping& mapping,
                        const MigrationOptions& options);

// The change of one device's holding, per layer: plus 1/M' if the new configuration has the layer
// there, minus 1/M if the old one has.
struct LayerChange {
  LayerRange before, after;
  double before_share = 0, after_share = 0;
};

// `bound_layers`: how many layers a device may hold beyond its old share.
LayerOrder OrderLayers(int layers, const std::vector<LayerChange>& devices, double bound_layers);

}  // namespace millrace::experiments::spotserve
