// ModelLane: one lane at a ModelStage: its KV pools, and what its plans have said of its sequences.
//
// Plans come from another process: what they name is checked before it is used, and a plan that
// names what does not exist is refused. After that the lane runs no more, because its tables would
// no longer be those the plans mean.
//
// Owned by the stage and used by its thread; the pool's bytes may be read and written by any.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/sampler.h"
#include "engine/stage.h"
#include "model/model.h"
#include "tensor/device.h"

namespace millrace::engine {

class ModelLane {
 public:
  struct Sequence {
    std::optional<SamplingState> sampling;  // where tokens come out
    std::vector<BlockIndex> blocks;
    uint64_t plan = 0;  // the number of the plan that named it last
  };

  // REQUIRES: the lane's layers are among the model's.
  static Result<std::unique_ptr<ModelLane>> Open(LaneId id, const StageLane& options,
                                                 const model::Model& model, tensor::Device& device);

  const StageLane& options() const { return options_; }
  const std::shared_ptr<tensor::KvPool>& kv() const { return kv_; }

  // Takes the part's plan in: forgets and starts sequences, moves blocks, brings tables up to date.
  Status Begin(const StagePart& part, size_t row_bytes);

  // Of the plan taken in last.
  int rows() const { return static_cast<int>(positions_.size()); }
  std::span<const int32_t> positions() const { return positions_; }
  Sequence& sequence(SequenceId id) { return sequences_.at(id); }
  // Its spans, in a batch where the plan's first row is `first_row`. Valid until the next call.
  model::BatchKv BatchKvAt(int first_row);

 private:
  ModelLane(LaneId id, const StageLane& options, const model::Model& model, tensor::Device& device)
      : id_(id), options_(options), model_(model), device_(device) {}
  Status TakeIn(const StagePart& part, size_t row_bytes);
  Status CheckMoves(const StepPlan& plan) const;
  Status CheckTokens(std::span<const TokenId> tokens) const;
  Status StartSequence(const SequenceStart& start);
  Status UpdateSequence(const StepPlan& plan, const SequenceStep& step);
  void MoveBlocks(const StepPlan& plan);

  const LaneId id_;
  const StageLane options_;
  const model::Model& model_;
  tensor::Device& device_;
  std::shared_ptr<tensor::KvPool> kv_;       // shared with transfers under way
  std::unique_ptr<tensor::KvPool> host_kv_;  // swap pool; null without one
  std::unordered_map<SequenceId, Sequence> sequences_;
  std::vector<int32_t> positions_;
  std::vector<tensor::AttentionSpan> spans_;
  int spans_first_row_ = 0;
  uint64_t plans_ = 0;
  Status failed_;
};

}  // namespace millrace::engine
