// Who takes which place of a new configuration, so that the fewest bytes move: SpotServe's device
// mapper (section 3.3) as a maximum-weight matching in two levels. A place is (pipeline, stage,
// shard); what a device holds is a range of layers times a range of each layer's width, so any old
// cut can be matched with any new one.
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

namespace millrace::plan::spot {

// A part of a layer's width, in units of 1 / kShardUnits.
inline constexpr int kShardUnits = 128;

struct ShardRange {
  int begin = 0, end = 0;
  int size() const { return end - begin; }
  friend auto operator<=>(const ShardRange&, const ShardRange&) = default;
};

// Layers times width.
struct Slice {
  LayerRange layers;
  ShardRange shards;
  friend auto operator<=>(const Slice&, const Slice&) = default;
};

struct Position {
  int data = 0, stage = 0, shard = 0;
  friend auto operator<=>(const Position&, const Position&) = default;
};

// Layers are dealt as evenly as whole layers allow. REQUIRES: a position of the configuration.
Slice SliceOf(int layers, const ParallelConfig& config, const Position& position);

// What the parts of a model weigh.
struct ModelBytes {
  int layers = 0;
  int64_t layer_sharded_bytes = 0;  // cut by tensor parallelism
  int64_t layer_whole_bytes = 0;    // norms: every device of the stage holds them
  int64_t embedding_bytes = 0;      // every device holds it
  int64_t head_bytes = 0;           // devices of the last stage hold it
  int64_t kv_bytes_per_token_layer = 0;

  // A transformer of `hidden` and `vocabulary`, as the released code counts its parameters.
  static ModelBytes Transformer(int layers, int hidden, int vocabulary, int positions,
                                int bytes_per_value);
  // One device's share of `slice`, the embedding included.
  int64_t WeightBytes(const Slice& slice) const;
};

// What a device holds from the old configuration.
struct Holding {
  Position position;
  Slice slice;
};

// A machine; devices of one machine talk over a fast link, so tensor groups stay inside.
struct Instance {
  std::vector<std::optional<Holding>> devices;  // none: nothing yet
  bool leaving = false;                         // under notice: gives, takes no place
};

// The pipelines that continue: by new pipeline, the old one whose running batch it takes over.
using Inheritance = std::vector<std::optional<int>>;

struct RunningBatch {
  int pipeline = 0;  // of the old configuration
  int steps = 0;     // tokens decoded so far
};

// When more batches were interrupted than there are new pipelines, those with the most decoded
// tokens stay; a batch keeps its number where it can (SpotServe, section 3.3; "replicas_stay").
Inheritance InheritBatches(std::vector<RunningBatch> batches, int pipelines);

struct MapRequest {
  ParallelConfig config;  // the new one
  ModelBytes bytes;
  std::vector<Instance> instances;  // all with the same number of devices
  Inheritance inherits;             // by new pipeline
  std::vector<int64_t> kv_tokens;   // by old pipeline: tokens in its cache
};

struct Mapping {
  // By instance and device; none for one that is not needed, or leaving.
  std::vector<std::vector<std::optional<Position>>> positions;
  int64_t reused_bytes = 0;  // weights and KV that stay where they are
};

inline constexpr int kMapDevicesMax = 1024;

// kFailedPrecondition when the instances are too few, kInvalidArgument when tensor groups and
// instances do not divide each other or a machine would hold terabytes. Deterministic; among equals
// whoever can stays in place.
Result<Mapping> MapDevices(const MapRequest& request);

// Bytes of `wanted` that `held` already has, KV included when its pipeline is the inherited one.
int64_t ReusableBytes(const MapRequest& request, const Holding& held, const Position& wanted);

}  // namespace millrace::plan::spot
