// Stage: layers of a model on one device, run for the lanes that pass through them. What a local
// executor, a worker process and the fault lab drive alike: a real model (model_stage.h) or one
// made of hashes whose every token depends on every layer's KV (hash_stage.h).
//
// A batch is whatever has arrived: steps of several lanes that may enter and leave at different
// layers (Helix section 5, partial inference); rows that are at the same layer run together.
//
// Used by one thread at a time, but ReadKv, WriteKv: any thread, on blocks that no running batch
// writes (the ledger pins them).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "core/plan.h"
#include "core/step_plan.h"
#include "core/worker_messages.h"

namespace millrace::engine {

struct StageLane {
  LayerRange layers;  // within the stage's
  int block_size = 16;
  int num_blocks = 0;
  int num_host_blocks = 0;
  bool first = false;  // tokens come in: embeds
  bool last = false;   // tokens come out: samples
  std::vector<TokenId> eos_token_ids;
  // The rows that enter these layers are wanted (row_keeping_stage.h). Ascending, behind the first
  // of `layers`; their end is one of them at most where rows come out.
  std::vector<int> keep_rows_at = {};
};

// Rows that entered a layer: [tokens, row_bytes()].
struct EnteringRows {
  int layer = 0;
  std::vector<std::byte> rows;
};

// One lane's step at this stage. Rows are those of plan.tokens, in order.
struct StagePart {
  LaneId lane;
  const StepPlan* plan = nullptr;
  std::span<const std::byte> input;  // [tokens, row_bytes()]; empty where tokens come in
  std::vector<std::byte> output;     // [tokens, row_bytes()]; empty where tokens come out
  StepResult result;                 // at the last hop; at any hop `error`, when this part failed
  std::optional<LayerRange> layers = {};  // of the lane's here, these alone run; none: all
  // Of the lane's keep_rows_at those within the layers that ran: at their end it is the output.
  std::vector<EnteringRows> inner_rows = {};

  LayerRange LayersOf(const StageLane& lane_here) const {
    return layers.value_or(lane_here.layers);
  }
  bool TokensIn(const StageLane& lane_here) const {
    return lane_here.first && LayersOf(lane_here).begin == lane_here.layers.begin;
  }
  bool TokensOut(const StageLane& lane_here) const {
    return lane_here.last && LayersOf(lane_here).end == lane_here.layers.end;
  }
};

// A box of one lane's KV: what a transfer moves. Without layers, [e, e), and without heads: the
// rows that entered layer e, where they are kept (row_keeping_stage.h).
struct KvBox {
  LayerRange layers;                 // within the lane's at this stage
  int first_head = 0, end_head = 0;  // of the whole model's KV heads, within this rank's
  int first_token = 0, end_token = 0;
};

class Stage {
 public:
  virtual ~Stage() = default;
  virtual LayerRange layers() const = 0;
  virtual size_t row_bytes() const = 0;
  // KV heads [first, end) of the whole model that this rank holds.
  virtual std::pair<int, int> kv_heads() const = 0;
  virtual int model_kv_heads() const = 0;  // of all ranks

  // kResourceExhausted: no memory for so many blocks.
  virtual Status OpenLane(LaneId lane, const StageLane& options) = 0;
  virtual void CloseLane(LaneId lane) = 0;
  // At most one part per lane. Fills output or result of each. A plan that names what its lane does
  // not have fails alone: its part has result.error and the others run. A returned error: all of
  // them failed. A lane with a failed step runs no more.
  virtual Status Run(std::span<StagePart> parts) = 0;

  // The box as dense bytes, the same for every layout and block size: [layer][K, V][head][token]
  // [head_dim], in the KV's own dtype.
  virtual size_t KvBytes(const KvBox& box) const = 0;
  // `blocks`: the sequence's table, from token 0. kNotFound: the lane is not open, or no more.
  // kInvalidArgument: the box or the table names what the lane does not have here.
  virtual Status ReadKv(LaneId lane, const KvBox& box, std::span<const BlockIndex> blocks,
                        std::span<std::byte> out) const = 0;
  virtual Status WriteKv(LaneId lane, const KvBox& box, std::span<const BlockIndex> blocks,
                         std::span<const std::byte> in) = 0;
  // Whether the rows that entered `layer` are kept, of all these tokens.
  virtual bool HoldsRows(LaneId, int /*layer*/, std::span<const BlockIndex>, int /*first_token*/,
                         int /*end_token*/) const {
    return false;
  }
};

}  // namespace millrace::engine
