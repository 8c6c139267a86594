// Stage: layers of a model on one device, run for the pipelines that pass through them. Local
// measurements, worker processes and the fault lab use this interface: for a real model
// (model_stage.h) or one made of hashes whose every token depends on every layer's KV
// (hash_stage.h).
//
// A batch is the steps that have arrived. They may be of several pipelines that enter and leave at
// different layers (Helix section 5, partial inference); rows at the same layer run together.
//
// Used by one thread at a time, except ReturnBlocks and the reads and writes of KV and activations:
// any thread, on blocks that no running batch writes (the ledger pins them).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "base/status.h"
#include "core/output_grammar.h"
#include "core/plan.h"
#include "core/sequence_tables.h"
#include "core/step_plan.h"
#include "core/worker_messages.h"

namespace millrace::stage {

struct StagePipeline {
  LayerRange layers;  // within the stage's
  int block_size = 16;
  int num_blocks = 0;
  int num_host_blocks = 0;
  bool first = false;  // takes tokens: embeds
  bool last = false;   // returns tokens: samples
  std::vector<TokenId> eos_token_ids;
  // Requests the activations that enter these layers (activation_caching_stage.h). Ascending, after
  // the first of `layers`; their end may be among them only if the stage returns activations.
  std::vector<int> cache_activations_at = {};
  bool shares_memory = false;  // OpenPipeline::shares_memory
  // Of the cluster's vocabulary; null: it is not known, and constrained sequences fail.
  std::shared_ptr<GrammarSource> grammars = nullptr;
};

// Activations that entered a layer: [tokens, row_bytes()].
struct EnteringActivations {
  int layer = 0;
  std::vector<std::byte> rows;
};

// What a stage can run: bounds for the plans of its pipelines (core/step_checker.h).
struct StageLimits {
  int vocab_size = 0;
  int max_model_len = 0;       // positions of a sequence
  int max_batched_tokens = 0;  // of one part
};

// One pipeline's step at this stage. Rows are those of the sequences' tokens, in order.
struct StagePart {
  PipelineId pipeline;
  const StepPlan* plan = nullptr;           // whose sequences start and end, and whose blocks move
  std::span<const SequenceView> sequences;  // to compute: the plan's, or some of them
  std::span<const std::byte> input;  // [tokens, row_bytes()]; empty if the stage takes tokens
  std::vector<std::byte> output;     // [tokens, row_bytes()]; empty if the stage returns tokens
  StepResult result;                 // at the last hop; at any hop `error`, if this part failed
  // The only layers of the pipeline to run here; unset: all. If set, this continues a step: its
  // sequences have started and its blocks have moved.
  std::optional<LayerRange> layers = {};
  // For those of the pipeline's cache_activations_at within the layers that ran; at their end they
  // are the output.
  std::vector<EnteringActivations> inner_activations = {};

  int num_tokens() const {
    int tokens = 0;
    for (const SequenceView& s : sequences) tokens += s.num_tokens();
    return tokens;
  }
  LayerRange LayersOf(const StagePipeline& pipeline_here) const {
    return layers.value_or(pipeline_here.layers);
  }
  bool TokensIn(const StagePipeline& pipeline_here) const {
    return pipeline_here.first && LayersOf(pipeline_here).begin == pipeline_here.layers.begin;
  }
  bool TokensOut(const StagePipeline& pipeline_here) const {
    return pipeline_here.last && LayersOf(pipeline_here).end == pipeline_here.layers.end;
  }
};

// A box of one pipeline's KV.
struct KvBox {
  LayerRange layers;                 // within the pipeline's at this stage
  int first_head = 0, end_head = 0;  // of the whole model's KV heads, within this rank's
  int first_token = 0, end_token = 0;
  friend bool operator==(const KvBox&, const KvBox&) = default;
};
// Activations that entered a layer, if they are cached (activation_caching_stage.h).
struct ActivationRange {
  int layer = 0;
  int first_token = 0, end_token = 0;
  friend bool operator==(const ActivationRange&, const ActivationRange&) = default;
};
// The unit of transfers.
using TransferItem = std::variant<KvBox, ActivationRange>;

class Stage {
 public:
  virtual ~Stage() = default;
  virtual LayerRange layers() const = 0;
  virtual size_t row_bytes() const = 0;
  // The whole model's KV heads [first, end) that this rank holds.
  virtual std::pair<int, int> kv_heads() const = 0;
  virtual int model_kv_heads() const = 0;  // of all ranks
  virtual StageLimits limits() const = 0;

  // kResourceExhausted: no memory for the blocks.
  virtual Status OpenPipeline(PipelineId pipeline, const StagePipeline& options) = 0;
  virtual void ClosePipeline(PipelineId pipeline) = 0;
  // The content of the blocks is not needed any more: their memory may be used for other things.
  // Any thread, while no batch uses the blocks. Ignored if the pipeline is not open.
  virtual void ReturnBlocks(PipelineId, std::span<const BlockIndex>) {}
  // At most one part per pipeline. Fills output or result of each. A part whose input does not fit,
  // or whose pipeline is not open, fails alone: it has result.error and the others run. A returned
  // error means that all failed. A pipeline with a failed step runs no more. REQUIRES: the plans
  // are within the stage's and the pipeline's limits (core/step_checker.h).
  virtual Status Run(std::span<StagePart> parts) = 0;

  // The box as dense bytes, the same for every layout and block size: [layer][K, V][head][token]
  // [head_dim], in the KV's own dtype.
  virtual size_t KvBytes(const KvBox& box) const = 0;
  // `blocks`: the sequence's table, from token 0. kNotFound: the pipeline is not open (any more).
  // kInvalidArgument: the box or the table names something that the pipeline does not have here.
  virtual Status ReadKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                        std::span<std::byte> out) const = 0;
  virtual Status WriteKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                         std::span<const std::byte> in) = 0;
  // [tokens, row_bytes()]. kFailedPrecondition: they are not cached.
  virtual Status ReadActivations(PipelineId, const ActivationRange&, std::span<const BlockIndex>,
                                 std::span<std::byte> /*out*/) const {
    return FailedPrecondition("this stage caches no activations");
  }
  // The stage may drop them.
  virtual Status WriteActivations(PipelineId, const ActivationRange&, std::span<const BlockIndex>,
                                  std::span<const std::byte> /*in*/) {
    return OkStatus();
  }
  // Whether all of them are cached.
  virtual bool HoldsActivations(PipelineId, const ActivationRange&,
                                std::span<const BlockIndex>) const {
    return false;
  }

  // Of either kind of item.
  size_t Bytes(const TransferItem& item) const {
    if (const auto* box = std::get_if<KvBox>(&item)) return KvBytes(*box);
    const auto& activations = std::get<ActivationRange>(item);
    return static_cast<size_t>(activations.end_token - activations.first_token) * row_bytes();
  }
  Status Read(PipelineId pipeline, const TransferItem& item, std::span<const BlockIndex> blocks,
              std::span<std::byte> out) const {
    if (const auto* box = std::get_if<KvBox>(&item)) return ReadKv(pipeline, *box, blocks, out);
    return ReadActivations(pipeline, std::get<ActivationRange>(item), blocks, out);
  }
  Status Write(PipelineId pipeline, const TransferItem& item, std::span<const BlockIndex> blocks,
               std::span<const std::byte> in) {
    if (const auto* box = std::get_if<KvBox>(&item)) return WriteKv(pipeline, *box, blocks, in);
    return WriteActivations(pipeline, std::get<ActivationRange>(item), blocks, in);
  }
};

}  // namespace millrace::stage
