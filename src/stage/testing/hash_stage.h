// HashStage: a Stage without a model (hash_model.h). It keeps keys and values in blocks and reads
// them through the block tables of the plans, so a wrong, missing, stale or half-copied block of
// any layer changes every later token. A reused block shows its old content; one that was returned
// loses it.
//
// One thread, like every Stage; ReadKv and WriteKv as in stage.h.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "stage/pooler.h"
#include "stage/stage.h"
#include "stage/testing/hash_model.h"

namespace millrace::stage {

class HashStage : public Stage {
 public:
  // Heads [first, end) of `model`; all of them unless it is a tensor-parallel rank.
  HashStage(const HashModel& model, LayerRange layers);
  HashStage(const HashModel& model, LayerRange layers, std::pair<int, int> heads);

  LayerRange layers() const override { return layers_; }
  size_t row_bytes() const override { return sizeof(uint64_t); }
  std::pair<int, int> kv_heads() const override { return heads_; }
  int model_kv_heads() const override { return model_.heads; }
  StageLimits limits() const override;
  Status OpenPipeline(PipelineId pipeline, const StagePipeline& options) override;
  void ClosePipeline(PipelineId pipeline) override;
  void ReturnBlocks(PipelineId pipeline, std::span<const BlockIndex> blocks) override;
  // REQUIRES: every head is here; RunRanks runs the ranks of a stage together.
  Status Run(std::span<StagePart> parts) override;
  size_t KvBytes(const KvBox& box) const override;
  Status ReadKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                std::span<std::byte> out) const override;
  Status WriteKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                 std::span<const std::byte> in) override;

  // Runs the same batch at each rank, layer by layer, and sums their heads as a collective would.
  // REQUIRES: together the ranks hold each head once; the parts are the same at each.
  static Status RunRanks(std::span<HashStage* const> ranks,
                         std::span<const std::span<StagePart>> parts);

  int num_pipelines() const;
  bool HasPipeline(PipelineId pipeline) const { return Find(pipeline) != nullptr; }
  // Calls of Run and WriteKv that named a pipeline that is not open: violations of the fence.
  uint64_t refused_writes() const { return refused_writes_; }

 private:
  struct Pipeline {
    StagePipeline options;
    std::vector<uint64_t> device, host;  // [layer][block * block_size + offset][head]
    // Of the constrained sequences, at the last hop.
    std::map<SequenceId, std::vector<TokenId>> outputs;
    std::map<SequenceId, Pooler> poolers;  // of sequences that ask for a vector, at the last hop
  };
  // One part while it runs.
  struct Batch {
    Pipeline* pipeline = nullptr;  // null: the part failed at some rank
    LayerRange layers;
    StagePart* part = nullptr;
    std::vector<uint64_t> states;  // by row
    std::vector<uint64_t> sums;    // by row, this rank's heads
  };

  int num_heads() const { return heads_.second - heads_.first; }
  // null: it is not open. A transfer keeps what it found, even if the pipeline closes meanwhile.
  std::shared_ptr<Pipeline> Find(PipelineId pipeline) const;
  size_t SlotIndex(const Pipeline& pipeline, int layer, BlockIndex block, int offset) const;
  void CopyBlock(const Pipeline& pipeline, std::vector<uint64_t>& to, int to_blocks,
                 BlockIndex to_block, const std::vector<uint64_t>& from, int from_blocks,
                 BlockIndex from_block) const;
  Status Check(const StagePart& part) const;
  Status Begin(StagePart& part, Batch& batch);
  static void RecordOutputs(Pipeline& pipeline, const StagePart& part);
  void MoveBlocks(Pipeline& pipeline, const StepPlan& plan) const;
  void SumLayer(Batch& batch, int layer) const;
  void End(Batch& batch) const;
  // Stores activations that are requested between layers.
  static void KeepEntering(Batch& batch, int layer);
  SequenceResult SampleOf(const Pipeline& pipeline, const SequenceView& sequence,
                          std::span<const uint64_t> states) const;

  static SequenceResult PoolOf(Pipeline& pipeline, const SequenceView& sequence,
                               std::span<const uint64_t> states);

  HashModel model_;
  LayerRange layers_;
  std::pair<int, int> heads_;
  mutable Mutex mutex_;
  std::map<PipelineId, std::shared_ptr<Pipeline>> pipelines_ MR_GUARDED_BY(mutex_);
  mutable std::atomic<uint64_t> refused_writes_ = 0;
};

}  // namespace millrace::stage
