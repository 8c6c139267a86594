// What must move to get from one configuration to the next, from where, in which order, and how
// long that takes: SpotServe's migration planner (section 3.4, Algorithm 2). Only what is missing
// moves, once; KV goes first, sources under notice before all, then layers in an order that keeps
// every device's memory within a bound.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "plan/spot/mapping.h"

namespace millrace::plan::spot {

struct MigrationOptions {
  // A device may hold, while layers move, this multiple of its old share beyond it: 0 is "never
  // more than before", the published default.
  double memory_tolerance = 0;
  double between_bytes_per_s = 6.25e9;  // between machines: 50 Gb/s, as the released code assumes
  double within_bytes_per_s = 6.25e9;   // between devices of one machine
  double fixed_s = 0.5;                 // stopping and starting engines
};

enum class TransferKind : uint8_t { kKv, kEmbedding, kLayer, kHead };

struct DeviceRef {
  int instance = 0, device = 0;
  friend auto operator<=>(const DeviceRef&, const DeviceRef&) = default;
};

// A pull of one piece by the device that needs it.
struct Transfer {
  TransferKind kind = TransferKind::kLayer;
  std::optional<DeviceRef> from;  // none: nobody holds it any more, it comes from storage
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
  double peak_layers = 0;     // the most any device held beyond its old share, in layers
};

struct Migration {
  std::vector<Transfer> transfers;  // in the order in which they should start
  LayerOrder order;
  int64_t bytes = 0;          // all of it
  int64_t kv_bytes = 0;       // of it, cache
  int64_t storage_bytes = 0;  // of it, from storage
  double seconds = 0;         // T_mig, storage not counted
  std::vector<bool> kv_lost;  // by new pipeline: a part of the inherited cache is nowhere
};

// `mapping` answers `request`.
Migration PlanMigration(const MapRequest& request, const Mapping& mapping,
                        const MigrationOptions& options);

// One device's change, in layers held per layer: 1/M' where the new configuration has it there,
// less 1/M where the old one has.
struct LayerChange {
  LayerRange before, after;
  double before_share = 0, after_share = 0;
};

// `bound_layers`: the most a device may hold beyond its old share.
LayerOrder OrderLayers(int layers, const std::vector<LayerChange>& devices, double bound_layers);

}  // namespace millrace::plan::spot
