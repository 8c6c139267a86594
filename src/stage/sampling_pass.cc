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
  const SamplingState& state = row.pipeline->sampling(sequence.id);
  const int known = static_cast<int>(state.tokens().size());
  for (int i = 0; i < sequence.num_tokens(); ++i, ++row.row) {
    const bool last = i + 1 == sequence.num_tokens();
    row.position = sequence.start + i + 1;
    row.sample = last && (sequence.logits == LogitsWanted::kLast || row.position >= known);
    row.prompt_logprob =
        sequence.logits == LogitsWanted::kAll && row.position < state.prompt_tokens();
    if (row.sample || row.prompt_logprob) wanted_.push_back(row);
  }
}

// Runs in groups of as many rows as the model's logits buffer holds; a row's logits do not depend
// on its group.
void SamplingPass::Run() {
  const auto vocab = static_cast<size_t>(model_.spec().vocab_size);
  const auto group_max = static_cast<size_t>(model_.max_logits_rows());
  for (size_t first = 0; first < wanted_.size(); first += group_max) {
    const size_t count = std::min(group_max, wanted_.size() - first);
    rows_.clear();
    for (size_t i = 0; i < count; ++i) rows_.push_back(wanted_[first + i].row);
    device_.Read(model_.Head(rows_), logits_.data());
    for (size_t i = 0; i < count; ++i) {
      UseRow(wanted_[first + i], std::span(logits_).subspan(i * vocab, vocab));
    }
  }
  wanted_.clear();
}

void SamplingPass::UseRow(const LogitsRow& wanted, std::span<float> logits) {
  SequenceResult& result = wanted.part->result.sequences[wanted.result];
  SamplingState& state = wanted.pipeline->sampling(result.id);
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
  auto choice =
      sampler_.Sample(logits, wanted.position, state, wanted.pipeline->options().eos_token_ids);
  if (!choice.ok()) {
    result.error = choice.status();
    return;
  }
  result.token = choice->token;
  result.logprobs = std::move(choice->logprobs);
}

}  // namespace millrace::stage
