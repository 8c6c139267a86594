// Assigns devices to the positions of a new configuration so that the fewest bytes move:
// SpotServe's device mapper (section 3.3), a maximum-weight matching in two levels. A position is
// (pipeline, stage, shard). A device holds a range of layers times a range of each layer's width,
// so any old partition can be matched with any new one.
//
// Pure; any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "core/plan.h"
#include "plan/spot/profile.h"

namespace millrace::experiments::spotserve {

using plan::spot::ParallelConfig;

// A part of a layer's width, in units of 1 / kShardUnits.
inline constexpr int kShardUnits = 128;

struct ShardRange {
  int begin = 0, end = 0;
  int size() const { return end - begin; }
  friend auto operator<=>(const ShardRange&, const ShardRange&) = default;
};

// A range of layers times a range of their width.
struct Slice {
  LayerRange layers;
  ShardRange shards;
  friend auto operator<=>(const Slice&, const Slice&) = default;
};

struct Position {
  int data = 0, stage = 0, shard = 0;
  friend auto operator<=>(const Position&, const Position&) = default;
};

// Layers are divided as evenly as whole layers allow. REQUIRES: a position of the configuration.
Slice SliceOf(int layers, const ParallelConfig& config, const Position& position);

// Sizes of the parts of a model.
struct ModelBytes {
  int layers = 0;
  int64_t layer_sharded_bytes = 0;  // divided by tensor parallelism
  int64_t layer_whole_bytes = 0;    // norms: every device of the stage holds all of them
  int64_t embedding_bytes = 0;      // every device holds it
  int64_t head_bytes = 0;           // devices of the last stage hold it
  int64_t kv_bytes_per_token_layer = 0;

  // A transformer of `hidden` and `vocabulary`, with parameters counted as in the released code.
  static ModelBytes Transformer(int layers, int hidden, int vocabulary, int positions,
                                int bytes_per_value);
  // One device's share of `slice`, the embedding included.
  int64_t WeightBytes(const Slice& slice) const;
};

// What a device holds of the old configuration.
struct Holding {
  Position position;
  Slice slice;
};

// A machine. Its devices share a fast link, so tensor groups stay inside.
struct Instance {
  std::vector<std::optional<Holding>> devices;  // none: holds nothing yet
  bool leaving = false;                         // under notice: sends data, gets no position
};

// For each new pipeline, the old pipeline whose running batch it continues.
using Inheritance = std::vector<std::optional<int>>;

struct RunningBatch {
  int pipeline = 0;  // of the old configuration
  int steps = 0;     // tokens decoded so far
};

// If more batches were interrupted than there are new pipelines, those with the most decoded tokens
// stay. A batch keeps its number if possible (SpotServe, section 3.3; "replicas_stay").
Inheritance InheritBatches(std::vector<RunningBatch> batches, int pipelines);

struct MapRequest {
  ParallelConfig config;  // the new one
  ModelBytes bytes;
  std::vector<Instance> instances;  // all with the same number of devices
  Inheritance inherits;             // by new pipeline
  std::vector<int64_t> kv_tokens;   // by old pipeline: tokens in its cache
};

struct Mapping {
  // By instance and device; none for a device that is not needed or is leaving.
  std::vector<std::vector<std::optional<Position>>> positions;
  int64_t reused_bytes = 0;  // weights and KV that stay where they are
};

inline constexpr int kMapDevicesMax = 1024;

// Returns kFailedPrecondition if there are too few instances; kInvalidArgument if tensor groups and
// instances do not divide each other or a machine would hold terabytes. Deterministic; on a tie, a
// device stays in place.
Result<Mapping> MapDevices(const MapRequest& request);

// Bytes of `wanted` that `held` already has, with KV if its pipeline is the inherited one.
int64_t ReusableBytes(const MapRequest& request, const Holding& held, const Position& wanted);

}  // namespace millrace::experiments::spotserve
