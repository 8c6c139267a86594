// ModelPipeline: one pipeline at a ModelStage: its KV pools, and the state of its sequences from
// its plans.
//
// Plans come from another process: every name in them is checked before it is used, and a plan that
// names something that does not exist is refused. After that the pipeline runs no more, because its
// tables may differ from those that later plans assume.
//
// Owned by the stage and used by its thread; any thread may read and write the pool's bytes.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "model/model.h"
#include "stage/sampler.h"
#include "stage/stage.h"
#include "tensor/device.h"

namespace millrace::stage {

class ModelPipeline {
 public:
  struct Sequence {
    std::optional<SamplingState> sampling;  // at the last hop
    std::vector<BlockIndex> blocks;
    uint64_t plan = 0;  // the number of the last plan that named it
  };

  // REQUIRES: the pipeline's layers are among the model's.
  static Result<std::unique_ptr<ModelPipeline>> Open(PipelineId id, const StagePipeline& options,
                                                     const model::Model& model,
                                                     tensor::Device& device);

  const StagePipeline& options() const { return options_; }
  const std::shared_ptr<tensor::KvPool>& kv() const { return kv_; }

  // Applies the part's plan: releases and starts sequences, moves blocks, updates tables.
  Status Begin(const StagePart& part, size_t row_bytes);

  // Of the last applied plan.
  int rows() const { return static_cast<int>(positions_.size()); }
  std::span<const int32_t> positions() const { return positions_; }
  Sequence& sequence(SequenceId id) { return sequences_.at(id); }
  // Its spans, in a batch in which the plan's first row is `first_row`. Valid until the next call.
  model::BatchKv BatchKvAt(int first_row);

 private:
  ModelPipeline(PipelineId id, const StagePipeline& options, const model::Model& model,
                tensor::Device& device)
      : id_(id), options_(options), model_(model), device_(device) {}
  Status TakeIn(const StagePart& part, size_t row_bytes);
  Status CheckMoves(const StepPlan& plan) const;
  Status CheckTokens(std::span<const TokenId> tokens) const;
  Status StartSequence(const SequenceStart& start);
  Status UpdateSequence(const StepPlan& plan, const SequenceStep& step);
  void MoveBlocks(const StepPlan& plan);

  const PipelineId id_;
  const StagePipeline options_;
  const model::Model& model_;
  tensor::Device& device_;
  std::shared_ptr<tensor::KvPool> kv_;       // shared with transfers in progress
  std::unique_ptr<tensor::KvPool> host_kv_;  // swap pool; null if there is none
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<int32_t> positions_;
  std::vector<tensor::AttentionSpan> spans_;
  int spans_first_row_ = 0;
  uint64_t plans_ = 0;
  Status failed_;
};

}  // namespace millrace::stage
