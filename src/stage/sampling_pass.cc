#include "stage/sampling_pass.h"

#include <algorithm>

namespace millrace::stage {

SamplingPass::SamplingPass(model::Model& model, tensor::Device& device)
    : model_(model), device_(device) {
  if (!model.has_head()) return;
  logits_.resize(static_cast<size_t>(model.max_logits_rows()) *
                 static_cast<size_t>(model.spec().vocab_size));
}

void SamplingPass::Add(StagePart& part, ModelPipeline& pipeline, int first_row) {
  int32_t row = first_row;
  for (const SequenceView& sequence : part.sequences) {
    part.result.sequences.push_back({sequence.id});
    if (sequence.logits != LogitsWanted::kNone) {
      AddRows(sequence, {.part = &part,
                         .pipeline = &pipeline,
                         .row = row,
                         .result = part.result.sequences.size() - 1});
    }
    row += sequence.num_tokens();
  }
}

// `row`: the row of the sequence's first token.
void SamplingPass::AddRows(const SequenceView& sequence, LogitsRow row) {
  SamplingState& state = row.pipeline->sampling(sequence.id);
  const int known = static_cast<int>(state.tokens().size());
  for (int i = 0; i < sequence.num_tokens(); ++i, ++row.row) {
    const bool last = i + 1 == sequence.num_tokens();
    row.position = sequence.start + i + 1;
    row.sample = last && (sequence.logits == LogitsWanted::kLast || row.position >= known);
    if (state.params().pools()) {
      const bool wanted = state.pooler().Wants(row.position - 1, state.prompt_tokens());
      if (wanted || row.sample) pooled_.push_back(row);
      continue;
    }
    row.prompt_logprob =
        sequence.logits == LogitsWanted::kAll && row.position < state.prompt_tokens();
    if (row.prompt_logprob || (row.sample && !NeedsTokenOnly(state, row.position))) {
      read_.push_back(row);
    } else if (row.sample) {
      chosen_.push_back(row);
      how_.push_back(HowToChoose(state, row.position));
    }
  }
}

std::span<const int32_t> SamplingPass::Outputs() {
  outputs_.clear();
  for (const LogitsRow& row : chosen_) outputs_.push_back(row.row);
  for (const LogitsRow& row : read_) outputs_.push_back(row.row);
  for (const LogitsRow& row : pooled_) outputs_.push_back(row.row);
  return outputs_;
}

// Runs in groups of as many rows as the model's logits buffer holds; a row's logits do not depend
// on its group.
void SamplingPass::Run() {
  const int most = model_.max_logits_rows();
  const int chosen = static_cast<int>(chosen_.size()), all = static_cast<int>(outputs_.size());
  const int sampled = all - static_cast<int>(pooled_.size());
  for (int first = 0; first < sampled; first += most) {
    const int count = std::min(most, sampled - first);
    const tensor::Rows logits = model_.Head(first, count);
    const int choose = std::clamp(chosen - first, 0, count);
    if (choose > 0) ChooseRows(static_cast<size_t>(first), logits.Slice(0, choose));
    if (choose < count) {
      ReadRows(static_cast<size_t>(first + choose - chosen), logits.Slice(choose, count - choose));
    }
  }
  for (int first = sampled; first < all; first += most) {
    PoolRows(static_cast<size_t>(first - sampled),
             model_.HeadInput(first, std::min(most, all - first)));
  }
  Drop();
}

// `first`: of chosen_.
void SamplingPass::ChooseRows(size_t first, tensor::Rows logits) {
  const auto count = static_cast<size_t>(logits.rows);
  tokens_.resize(count);
  device_.Choose(logits, std::span(how_).subspan(first, count), tokens_);
  for (size_t i = 0; i < count; ++i) {
    const LogitsRow& wanted = chosen_[first + i];
    SequenceResult& result = wanted.part->result.sequences[wanted.result];
    if (tokens_[i]) {
      result.token = *tokens_[i];
    } else {
      result.error = NoToken(wanted.position);
    }
  }
}

// `first`: of read_.
void SamplingPass::ReadRows(size_t first, tensor::Rows logits) {
  const auto vocab = static_cast<size_t>(logits.cols);
  device_.Read(logits, logits_.data());
  for (size_t i = 0; i < static_cast<size_t>(logits.rows); ++i) {
    UseRow(read_[first + i], std::span(logits_).subspan(i * vocab, vocab));
  }
}

void SamplingPass::UseRow(const LogitsRow& wanted, std::span<float> logits) {
  SequenceResult& result = wanted.part->result.sequences[wanted.result];
  SamplingState& state = wanted.pipeline->sampling(result.id);
  if (wanted.prompt_logprob) {
    const TokenId next = state.tokens()[static_cast<size_t>(wanted.position)];
    auto logprobs = LogprobsAt(logits, next, state.params().prompt_logprobs.value_or(0));
    if (logprobs) {
      result.prompt_logprobs.push_back(std::move(*logprobs));
    } else if (result.error.ok()) {
      result.error = Internal("the model's output is not a number");
    }
  }
  if (!wanted.sample) return;
  auto choice =
      sampler_.Sample(logits, wanted.position, state, wanted.pipeline->options().eos_token_ids);
  if (!choice.ok()) {
    result.error = choice.status();
    return;
  }
  result.token = choice->token;
  result.logprobs = std::move(choice->logprobs);
}

// `first`: of pooled_.
void SamplingPass::PoolRows(size_t first, tensor::Rows states) {
  const auto columns = static_cast<size_t>(states.cols), rows = static_cast<size_t>(states.rows);
  states_.resize(std::max(states_.size(), rows * columns));
  device_.Read(states, states_.data());
  for (size_t i = 0; i < rows; ++i) {
    const LogitsRow& wanted = pooled_[first + i];
    SequenceResult& result = wanted.part->result.sequences[wanted.result];
    SamplingState& state = wanted.pipeline->sampling(result.id);
    const int position = wanted.position - 1;
    if (state.pooler().Wants(position, state.prompt_tokens())) {
      state.pooler().Add(position, std::span(states_).subspan(i * columns, columns));
    }
    if (!wanted.sample) continue;
    auto vector = state.pooler().Vector(state.prompt_tokens());
    if (vector.ok()) {
      result.pooled = std::move(*vector);
    } else {
      result.error = vector.status();
    }
  }
}

}  // namespace millrace::stage
