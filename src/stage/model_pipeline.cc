#include "stage/model_pipeline.h"

#include <fmt/format.h>

namespace millrace::stage {
namespace {

Status CheckCopies(const std::vector<BlockCopy>& copies, int from_blocks, int to_blocks) {
  for (const BlockCopy& copy : copies) {
    if (copy.from >= 0 && copy.from < from_blocks && copy.to >= 0 && copy.to < to_blocks) continue;
    return InvalidArgument(
        fmt::format("a copy from block {} (pool of {}) to block {} (pool of {}) is invalid",
                    copy.from, from_blocks, copy.to, to_blocks));
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<ModelPipeline>> ModelPipeline::Open(PipelineId id,
                                                           const StagePipeline& options,
                                                           const model::Model& model,
                                                           tensor::Device& device) {
  std::unique_ptr<ModelPipeline> pipeline(new ModelPipeline(id, options, model, device));
  tensor::KvShape shape = model.KvShapeFor(options.block_size, options.num_blocks);
  shape.num_layers = options.layers.size();
  MR_ASSIGN_OR_RETURN(pipeline->kv_, device.NewKvPool(shape));
  if (options.num_host_blocks == 0) return pipeline;
  shape.num_blocks = options.num_host_blocks;
  MR_ASSIGN_OR_RETURN(pipeline->host_kv_, device.NewKvPool(shape));
  return pipeline;
}

Status ModelPipeline::Begin(const StagePart& part, size_t row_bytes) {
  if (failed_.ok()) failed_ = TakeIn(part, row_bytes);
  return failed_;
}

Status ModelPipeline::TakeIn(const StagePart& part, size_t row_bytes) {
  const StepPlan& plan = *part.plan;
  ++plans_;
  positions_.clear();
  spans_.clear();
  spans_first_row_ = 0;
  const LayerRange layers = part.LayersOf(options_);
  if (layers.size() < 1 || !options_.layers.Contains(layers)) {
    return InvalidArgument(fmt::format("pipeline {}: layers [{}, {}) are not within its [{}, {})",
                                       id_.value(), layers.begin, layers.end, options_.layers.begin,
                                       options_.layers.end));
  }
  const size_t input_bytes = part.TokensIn(options_) ? 0 : plan.tokens.size() * row_bytes;
  if (part.input.size() != input_bytes) {
    return InvalidArgument(
        fmt::format("pipeline {}: {} bytes of activations for {} tokens, {} are needed",
                    id_.value(), part.input.size(), plan.tokens.size(), input_bytes));
  }
  if (std::ssize(plan.tokens) > model_.max_batched_tokens()) {
    return InvalidArgument(
        fmt::format("pipeline {}: a step has {} tokens, the limit of the stage is {}", id_.value(),
                    plan.tokens.size(), model_.max_batched_tokens()));
  }
  if (options_.first || options_.last) MR_RETURN_IF_ERROR(CheckTokens(plan.tokens));
  MR_RETURN_IF_ERROR(CheckMoves(plan));
  for (SequenceId id : plan.released) sequences_.erase(id);
  for (const SequenceStart& start : plan.started) MR_RETURN_IF_ERROR(StartSequence(start));
  for (const SequenceStep& step : plan.sequences) MR_RETURN_IF_ERROR(UpdateSequence(plan, step));
  if (positions_.size() != plan.tokens.size()) {
    return InvalidArgument(fmt::format("pipeline {}: the step has {} tokens, its sequences {}",
                                       id_.value(), plan.tokens.size(), positions_.size()));
  }
  MoveBlocks(plan);
  return OkStatus();
}

Status ModelPipeline::CheckMoves(const StepPlan& plan) const {
  const int device = options_.num_blocks, host = options_.num_host_blocks;
  MR_RETURN_IF_ERROR(CheckCopies(plan.swap_out, device, host));
  MR_RETURN_IF_ERROR(CheckCopies(plan.swap_in, host, device));
  return CheckCopies(plan.copies, device, device);
}

Status ModelPipeline::CheckTokens(std::span<const TokenId> tokens) const {
  const int vocab = model_.spec().vocab_size;
  for (TokenId token : tokens) {
    if (token >= 0 && token < vocab) continue;
    return InvalidArgument(fmt::format("pipeline {}: token {} is outside the vocabulary of {}",
                                       id_.value(), token, vocab));
  }
  return OkStatus();
}

Status ModelPipeline::StartSequence(const SequenceStart& start) {
  const auto [found, fresh] = sequences_.try_emplace(start.id);
  if (!fresh) {
    return InvalidArgument(fmt::format("pipeline {}: sequence {} has already been started",
                                       id_.value(), start.id.value()));
  }
  if (!options_.last) return OkStatus();
  if (!start.prompt || !start.params) {
    return InvalidArgument(fmt::format("pipeline {}: sequence {} has no prompt or no parameters",
                                       id_.value(), start.id.value()));
  }
  MR_RETURN_IF_ERROR(CheckTokens(*start.prompt));
  MR_RETURN_IF_ERROR(CheckTokens(start.params->stop_token_ids));
  for (const auto& [token, bias] : start.params->logit_bias) {
    MR_RETURN_IF_ERROR(CheckTokens({&token, 1}));
  }
  found->second.sampling.emplace(start);
  return OkStatus();
}

Status ModelPipeline::UpdateSequence(const StepPlan& plan, const SequenceStep& step) {
  const auto invalid = [&](std::string_view what) {
    return InvalidArgument(
        fmt::format("pipeline {}: sequence {} {}", id_.value(), step.id.value(), what));
  };
  const auto found = sequences_.find(step.id);
  if (found == sequences_.end()) return invalid("was never started");
  Sequence& sequence = found->second;
  if (std::exchange(sequence.plan, plans_) == plans_) return invalid("appears twice in the step");
  const int64_t end = int64_t{step.start} + step.num_tokens;
  if (step.num_tokens < 0 || step.start < 0 || end > model_.max_model_len()) {
    return invalid(fmt::format("has {} tokens from {}, the limit of the model is {}",
                               step.num_tokens, step.start, model_.max_model_len()));
  }
  if (step.first_token != std::ssize(positions_) ||
      step.first_token + int64_t{step.num_tokens} > std::ssize(plan.tokens)) {
    return invalid("does not follow its previous step");
  }
  if (step.keep_blocks < 0 || step.keep_blocks > std::ssize(sequence.blocks) ||
      step.first_new_block < 0 || step.num_new_blocks < 0 ||
      step.first_new_block + int64_t{step.num_new_blocks} > std::ssize(plan.blocks)) {
    return invalid("has a malformed block table");
  }
  sequence.blocks.resize(static_cast<size_t>(step.keep_blocks));
  for (BlockIndex block : plan.NewBlocksOf(step)) {
    if (block < 0 || block >= options_.num_blocks)
      return invalid("has a block that does not exist");
    sequence.blocks.push_back(block);
  }
  if (end > std::ssize(sequence.blocks) * int64_t{options_.block_size}) {
    return invalid("is beyond its blocks");
  }
  if (step.num_tokens == 0) return OkStatus();
  if (sequence.sampling) sequence.sampling->Record(step.start, plan.TokensOf(step));
  spans_.push_back({step.first_token, step.num_tokens, step.start, sequence.blocks});
  for (int i = 0; i < step.num_tokens; ++i) positions_.push_back(step.start + i);
  return OkStatus();
}

void ModelPipeline::MoveBlocks(const StepPlan& plan) {
  if (!plan.swap_out.empty()) device_.CopyBlocks(*kv_, *host_kv_, plan.swap_out);
  if (!plan.swap_in.empty()) device_.CopyBlocks(*host_kv_, *kv_, plan.swap_in);
  if (!plan.copies.empty()) device_.CopyBlocks(*kv_, *kv_, plan.copies);
}

model::BatchKv ModelPipeline::BatchKvAt(int first_row) {
  for (tensor::AttentionSpan& span : spans_) span.first_row += first_row - spans_first_row_;
  spans_first_row_ = first_row;
  return {kv_.get(), options_.layers.begin, spans_};
}

}  // namespace millrace::stage
