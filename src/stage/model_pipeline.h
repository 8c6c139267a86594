// ModelPipeline: one pipeline at a ModelStage: its KV pools, and at the last hop what sampling
// needs of its sequences. After a part that does not fit, the pipeline runs no more.
//
// Owned by the stage and used by its thread; any thread may read and write the pool's bytes.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "model/model.h"
#include "stage/kv_populator.h"
#include "stage/sampler.h"
#include "stage/stage.h"
#include "tensor/device.h"

namespace millrace::stage {

class ModelPipeline {
 public:
  // `populator`: has the pool's memory ready ahead of need; null: nothing does. REQUIRES: the
  // pipeline's layers are among the model's.
  static Result<std::unique_ptr<ModelPipeline>> Open(PipelineId id, const StagePipeline& options,
                                                     const model::Model& model,
                                                     tensor::Device& device,
                                                     KvPopulator* populator);

  const StagePipeline& options() const { return options_; }
  const std::shared_ptr<tensor::KvPool>& kv() const { return kv_; }
  // Null: nothing has the pool's memory ready.
  const std::shared_ptr<KvPopulator::Pool>& populated() const { return populated_; }

  // Moves the plan's blocks and takes the part's tokens in.
  Status Begin(const StagePart& part, size_t row_bytes);

  // Of the last part.
  int rows() const { return static_cast<int>(positions_.size()); }
  std::span<const int32_t> positions() const { return positions_; }
  SamplingState& sampling(SequenceId id) { return samplings_.at(id); }  // at the last hop
  // It as a part of a step, with its first row at `first_row`.
  tensor::StepPart PartAt(int first_row) const;

 private:
  ModelPipeline(PipelineId id, const StagePipeline& options, tensor::Device& device)
      : id_(id), options_(options), device_(device) {}
  Status TakeIn(const StagePart& part, size_t row_bytes);
  void StartSamplings(const StepPlan& plan);
  void MoveBlocks(const StepPlan& plan);

  const PipelineId id_;
  const StagePipeline options_;
  tensor::Device& device_;
  std::shared_ptr<tensor::KvPool> kv_;  // shared with transfers in progress
  std::shared_ptr<KvPopulator::Pool> populated_;
  std::unique_ptr<tensor::KvPool> host_kv_;                  // swap pool; null if there is none
  std::unordered_map<SequenceId, SamplingState> samplings_;  // at the last hop
  std::vector<int32_t> positions_;
  std::vector<tensor::AttentionSpan> spans_;
  Status failed_;
};

}  // namespace millrace::stage
