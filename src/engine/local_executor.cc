#include "engine/local_executor.h"

#include <algorithm>

namespace millrace::engine {

Result<std::unique_ptr<LocalExecutor>> LocalExecutor::Create(std::unique_ptr<tensor::Device> device,
                                                             std::unique_ptr<model::Model> model,
                                                             const LocalExecutorOptions& options) {
  std::unique_ptr<LocalExecutor> executor(new LocalExecutor());
  MR_ASSIGN_OR_RETURN(executor->kv_,
                      device->NewKvPool(model->KvShapeFor(options.block_size, options.num_blocks)));
  if (options.num_host_blocks > 0) {
    MR_ASSIGN_OR_RETURN(executor->host_kv_, device->NewKvPool(model->KvShapeFor(
                                                options.block_size, options.num_host_blocks)));
  }
  executor->traits_.block_size = options.block_size;
  executor->traits_.num_blocks = options.num_blocks;
  executor->traits_.num_host_blocks = options.num_host_blocks;
  executor->traits_.max_batched_tokens = model->max_batched_tokens();
  executor->traits_.max_sequences = options.max_sequences;
  executor->traits_.kv_bytes_per_block = model->spec().KvBytesPerToken() * options.block_size;
  executor->eos_token_ids_ = options.eos_token_ids;
  executor->logits_.resize(static_cast<size_t>(model->max_logits_rows()) *
                           static_cast<size_t>(model->spec().vocab_size));
  executor->device_ = std::move(device);
  executor->model_ = std::move(model);
  return executor;
}

void LocalExecutor::Submit(const StepPlan& plan) {
  MR_CHECK(!in_flight_) << "one step at a time";
  in_flight_ = true;
  for (SequenceId id : plan.released) sequences_.erase(id);
  for (const SequenceStart& start : plan.started) sequences_.try_emplace(start.id, start);
  MoveBlocks(plan);
  BuildBatch(plan);
  const model::Batch batch{tokens_, positions_, spans_};
  model_->Embed(batch);
  const SteadyClock clock;
  const Time begin = clock.Now();
  model_->Layers(batch, *kv_);
  layers_time_ = clock.Now() - begin;
  UseLogits();
}

const StepResult& LocalExecutor::Wait() {
  MR_CHECK(in_flight_) << "no step to wait for";
  in_flight_ = false;
  return result_;
}

void LocalExecutor::MoveBlocks(const StepPlan& plan) {
  if (!plan.swap_out.empty()) device_->CopyBlocks(*kv_, *host_kv_, plan.swap_out);
  if (!plan.swap_in.empty()) device_->CopyBlocks(*host_kv_, *kv_, plan.swap_in);
  if (!plan.copies.empty()) device_->CopyBlocks(*kv_, *kv_, plan.copies);
}

void LocalExecutor::BuildBatch(const StepPlan& plan) {
  tokens_.assign(plan.tokens.begin(), plan.tokens.end());
  positions_.clear();
  spans_.clear();
  wanted_.clear();
  result_.id = plan.id;
  result_.sequences.clear();
  for (const SequenceStep& step : plan.sequences) {
    auto found = sequences_.find(step.id);
    MR_CHECK(found != sequences_.end()) << "a step for sequence " << step.id << " nobody started";
    Sequence& sequence = found->second;
    sequence.sampling.Record(step.start, plan.TokensOf(step));
    sequence.blocks.resize(static_cast<size_t>(step.keep_blocks));
    const auto added = plan.NewBlocksOf(step);
    sequence.blocks.insert(sequence.blocks.end(), added.begin(), added.end());

    const int first_row = static_cast<int>(positions_.size());
    for (int i = 0; i < step.num_tokens; ++i) positions_.push_back(step.start + i);
    spans_.push_back({first_row, step.num_tokens, step.start, sequence.blocks});
    result_.sequences.push_back({step.id});
    WantLogits(step, sequence, first_row, result_.sequences.size() - 1);
  }
}

void LocalExecutor::WantLogits(const SequenceStep& step, const Sequence& sequence, int first_row,
                               size_t result) {
  if (step.logits == LogitsWanted::kNone) return;
  const int known = static_cast<int>(sequence.sampling.tokens().size());
  for (int i = 0; i < step.num_tokens; ++i) {
    const int position = step.start + i + 1;
    const bool last = i + 1 == step.num_tokens;
    LogitsRow row{first_row + i, result, position};
    row.sample = last && (step.logits == LogitsWanted::kLast || position >= known);
    row.prompt_logprob =
        step.logits == LogitsWanted::kAll && position < sequence.sampling.prompt_tokens();
    if (row.sample || row.prompt_logprob) wanted_.push_back(row);
  }
}

// In groups of as many rows as the model's logits buffer holds; a row's logits do not depend on the
// group it is in.
void LocalExecutor::UseLogits() {
  const auto vocab = static_cast<size_t>(model_->spec().vocab_size);
  const auto group_max = static_cast<size_t>(model_->max_logits_rows());
  for (size_t first = 0; first < wanted_.size(); first += group_max) {
    const size_t count = std::min(group_max, wanted_.size() - first);
    wanted_rows_.clear();
    for (size_t i = 0; i < count; ++i) wanted_rows_.push_back(wanted_[first + i].row);
    device_->Read(model_->Head(wanted_rows_), logits_.data());
    for (size_t i = 0; i < count; ++i) {
      UseRow(wanted_[first + i], std::span(logits_).subspan(i * vocab, vocab));
    }
  }
}

void LocalExecutor::UseRow(const LogitsRow& wanted, std::span<float> logits) {
  SequenceResult& result = result_.sequences[wanted.result];
  SamplingState& state = sequences_.at(result.id).sampling;
  if (wanted.prompt_logprob) {
    const TokenId next = state.tokens()[static_cast<size_t>(wanted.position)];
    auto logprobs = LogprobsAt(logits, next, state.params().prompt_logprobs.value_or(0));
    if (logprobs) {
      result.prompt_logprobs.push_back(std::move(*logprobs));
    } else {
      result.error = Internal("the model's output is not a number");
    }
  }
  if (!wanted.sample) return;
  auto choice = sampler_.Sample(logits, wanted.position, state, eos_token_ids_);
  if (!choice.ok()) {
    result.error = choice.status();
    return;
  }
  result.token = choice->token;
  result.logprobs = std::move(choice->logprobs);
}

}  // namespace millrace::engine
