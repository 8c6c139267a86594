#include "stage/model_pipeline.h"

#include <fmt/format.h>

namespace millrace::stage {

Result<std::unique_ptr<ModelPipeline>> ModelPipeline::Open(PipelineId id,
                                                           const StagePipeline& options,
                                                           const model::Model& model,
                                                           tensor::Device& device,
                                                           KvPopulator* populator) {
  std::unique_ptr<ModelPipeline> pipeline(new ModelPipeline(id, options, device));
  tensor::KvShape shape = model.KvShapeFor(options.block_size, options.num_blocks);
  shape.num_layers = options.layers.size();
  shape.huge_pages = !options.shares_memory;
  MR_ASSIGN_OR_RETURN(pipeline->kv_, device.NewKvPool(shape));
  // Pipelines that share memory give theirs back, so none is taken before it is needed.
  if (populator != nullptr && !options.shares_memory) {
    pipeline->populated_ = populator->Add(pipeline->kv_);
  }
  if (options.num_host_blocks == 0) return pipeline;
  shape.num_blocks = options.num_host_blocks;
  MR_ASSIGN_OR_RETURN(pipeline->host_kv_, device.NewKvPool(shape, tensor::Place::kHost));
  return pipeline;
}

Status ModelPipeline::Begin(const StagePart& part, size_t row_bytes) {
  if (failed_.ok()) failed_ = TakeIn(part, row_bytes);
  return failed_;
}

Status ModelPipeline::TakeIn(const StagePart& part, size_t row_bytes) {
  positions_.clear();
  spans_.clear();
  const LayerRange layers = part.LayersOf(options_);
  if (layers.size() < 1 || !options_.layers.Contains(layers)) {
    return InvalidArgument(fmt::format("pipeline {}: layers [{}, {}) are not within its [{}, {})",
                                       id_.value(), layers.begin, layers.end, options_.layers.begin,
                                       options_.layers.end));
  }
  const auto tokens = static_cast<size_t>(part.num_tokens());
  const size_t input_bytes = part.TokensIn(options_) ? 0 : tokens * row_bytes;
  if (part.input.size() != input_bytes) {
    return InvalidArgument(
        fmt::format("pipeline {}: {} bytes of activations for {} tokens, {} are needed",
                    id_.value(), part.input.size(), tokens, input_bytes));
  }
  if (!part.layers) {
    if (options_.last) StartSamplings(*part.plan);
    MoveBlocks(*part.plan);
  }
  for (const SequenceView& sequence : part.sequences) {
    if (options_.last) samplings_.at(sequence.id).Record(sequence.start, sequence.tokens);
    if (populated_ && !sequence.blocks.empty()) populated_->Uses(sequence.blocks.back());
    spans_.push_back({rows(), sequence.num_tokens(), sequence.start, sequence.blocks});
    for (int position = sequence.start; position < sequence.end(); ++position) {
      positions_.push_back(position);
    }
  }
  return OkStatus();
}

void ModelPipeline::StartSamplings(const StepPlan& plan) {
  for (const SequenceId id : plan.released) samplings_.erase(id);
  for (const SequenceStart& start : plan.started) {
    samplings_.try_emplace(start.id, start, options_.grammars.get());
  }
}

void ModelPipeline::MoveBlocks(const StepPlan& plan) {
  if (!plan.swap_out.empty()) device_.CopyBlocks(*kv_, *host_kv_, plan.swap_out);
  if (!plan.swap_in.empty()) device_.CopyBlocks(*host_kv_, *kv_, plan.swap_in);
  if (!plan.copies.empty()) device_.CopyBlocks(*kv_, *kv_, plan.copies);
}

tensor::StepPart ModelPipeline::PartAt(int first_row) const {
  return {kv_.get(), options_.layers.begin, first_row, rows(), spans_};
}

}  // namespace millrace::stage
