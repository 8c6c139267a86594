// ModelStage: a Stage with a real model: layers [begin, end) of it on one device.
//
// A batch runs layer by layer. At each layer the rows of all parts that are there run together,
// whatever their pipeline; only attention uses each pipeline's own pool. Parts are ordered so that
// those rows are adjacent if the pipelines' ranges allow it; otherwise the layer runs once for each
// adjacent group. A row's bits depend neither on its position nor on the other rows
// (tensor/device.h), so merging changes none. A batch of more rows than the model takes is run in
// several, part by part.
//
// A tensor-parallel rank runs the same batches in the same order as the others of its stage. Only
// rank 0 of the last stage produces tokens; the other ranks' results name no sequences. When the
// ranks' collective fails, Run fails, and so does every later one until UseCollective.
//
// Owns device, model and pipelines. Threads: stage.h.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "model/model.h"
#include "stage/kv_populator.h"
#include "stage/model_pipeline.h"
#include "stage/sampling_pass.h"
#include "stage/stage.h"
#include "tensor/device.h"

namespace millrace::stage {

class ModelStage : public Stage {
 public:
  // The model must be on `device`. `kv_ahead_bytes`: KV memory that is kept ready for what comes
  // (KvPopulator); 0: none, it comes when it is first written.
  ModelStage(std::unique_ptr<tensor::Device> device, std::unique_ptr<model::Model> model,
             size_t kv_ahead_bytes = 0);

  LayerRange layers() const override { return model_->layers(); }
  size_t row_bytes() const override;
  std::pair<int, int> kv_heads() const override;
  int model_kv_heads() const override;
  StageLimits limits() const override;
  Status OpenPipeline(PipelineId pipeline, const StagePipeline& options) override;
  void ClosePipeline(PipelineId pipeline) override;
  void ReturnBlocks(PipelineId pipeline, std::span<const BlockIndex> blocks) override;
  Status Run(std::span<StagePart> parts) override;
  size_t KvBytes(const KvBox& box) const override;
  Status ReadKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                std::span<std::byte> out) const override;
  Status WriteKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                 std::span<const std::byte> in) override;

  // Sets a rank's next collective after one failed, so that the ranks of a stage can continue
  // without loading anything again. Not while it runs.
  void UseCollective(net::Collective& collective) { model_->UseCollective(collective); }

  // The part of the last Run's time spent in the model's layers. On an asynchronous device it is
  // the time to submit the work.
  Duration layers_time() const { return layers_time_; }

  // Any thread.
  bool has_pipelines() const {
    const MutexLock lock(pipelines_mutex_);
    return !pipelines_.empty();
  }

  const model::Model& model() const { return *model_; }
  const tensor::Device& device() const { return *device_; }

 private:
  // A part of the current batch.
  struct Member {
    StagePart* part = nullptr;
    ModelPipeline* pipeline = nullptr;
    int first_row = 0;
    LayerRange layers() const { return part->LayersOf(pipeline->options()); }
  };
  // The data of a pipeline that a transfer needs; keeps the pool if the pipeline is closed
  // meanwhile.
  struct PipelinePool {
    std::shared_ptr<tensor::KvPool> kv;
    std::shared_ptr<KvPopulator::Pool> populated;  // may be null
    tensor::PoolKvBox box;
  };

  void Collect(std::span<StagePart> parts);
  Status RunBatch(std::span<Member> batch);
  void Place(std::span<Member> batch);
  void Enter(std::span<const Member> batch, int layer);
  void Leave(std::span<const Member> batch, int layer);
  void ReadRows(const Member& member, std::vector<std::byte>& rows);
  void FormGroups(std::span<const Member> batch, int layer);
  Status RunLayers(LayerRange layers);
  Result<PipelinePool> PoolOf(PipelineId pipeline, const KvBox& box,
                              std::span<const BlockIndex> blocks) const;

  const std::unique_ptr<tensor::Device> device_;  // declared first, because it must outlive the
                                                  // objects on it
  const std::unique_ptr<model::Model> model_;
  SamplingPass sampling_;
  const std::unique_ptr<KvPopulator> populator_;  // null: none; outlives the pipelines
  mutable Mutex pipelines_mutex_;  // for transfers: only the stage's thread changes the map
  std::unordered_map<PipelineId, std::unique_ptr<ModelPipeline>> pipelines_;

  // Of the current batch; kept to reuse their memory.
  std::vector<Member> members_;
  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_;
  std::vector<tensor::StepPart> parts_;
  std::vector<tensor::RowRange> groups_;  // rows that are at the same layer and adjacent
  Duration layers_time_;
};

// What is kept ready by default: the KV of some of the model's longest sequences in these layers,
// but at most kKvAheadBytesMax.
inline constexpr size_t kKvAheadSequences = 8;
inline constexpr size_t kKvAheadBytesMax = size_t{1} << 30;
// What was asked for, or the default.
size_t KvAheadBytes(const model::Model& model, std::optional<int64_t> asked);

}  // namespace millrace::stage
