#include "core/step_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millrace {
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

Status StepChecker::Check(const StepPlan& plan) {
  ++steps_;
  if (plan.IsTest()) return CheckTest(plan);
  if (plan.sequences.empty() || std::ssize(plan.tokens) > limits_.max_batched_tokens) {
    return InvalidArgument(fmt::format("a step must not have {} sequences and {} tokens",
                                       plan.sequences.size(), plan.tokens.size()));
  }
  MR_RETURN_IF_ERROR(CheckTokens(plan.tokens));
  MR_RETURN_IF_ERROR(CheckBlocks(plan));
  for (const SequenceId id : plan.released) {
    if (known_.erase(id) == 1) continue;
    return InvalidArgument(
        fmt::format("sequence {} is released but was never started", id.value()));
  }
  for (const SequenceStart& start : plan.started) {
    MR_RETURN_IF_ERROR(CheckStart(start));
    if (known_.try_emplace(start.id).second) continue;
    return InvalidArgument(fmt::format("sequence {} has already been started", start.id.value()));
  }
  int64_t tokens = 0;
  for (const SequenceStep& step : plan.sequences) {
    MR_RETURN_IF_ERROR(CheckSequence(plan, step, tokens));
    tokens += step.num_tokens;
  }
  if (tokens == std::ssize(plan.tokens)) return OkStatus();
  return InvalidArgument(
      fmt::format("the step has {} tokens and its sequences have {}", plan.tokens.size(), tokens));
}

Status StepChecker::CheckTest(const StepPlan& plan) const {
  const bool empty = plan.started.empty() && plan.released.empty() && plan.sequences.empty() &&
                     plan.tokens.empty() && plan.blocks.empty() && plan.swap_out.empty() &&
                     plan.swap_in.empty() && plan.copies.empty();
  if (empty && steps_ == 1) return OkStatus();
  return InvalidArgument("a test step must be the first one, and empty");
}

Status StepChecker::CheckBlocks(const StepPlan& plan) const {
  const int device = limits_.num_blocks, host = limits_.num_host_blocks;
  for (const BlockIndex block : plan.blocks) {
    if (block >= 0 && block < device) continue;
    return InvalidArgument(fmt::format("block {} does not exist in a pool of {}", block, device));
  }
  MR_RETURN_IF_ERROR(CheckCopies(plan.swap_out, device, host));
  MR_RETURN_IF_ERROR(CheckCopies(plan.swap_in, host, device));
  return CheckCopies(plan.copies, device, device);
}

Status StepChecker::CheckTokens(std::span<const TokenId> tokens) const {
  for (const TokenId token : tokens) {
    if (token >= 0 && token < limits_.vocab_size) continue;
    return InvalidArgument(
        fmt::format("token {} is outside the vocabulary of {}", token, limits_.vocab_size));
  }
  return OkStatus();
}

Status StepChecker::CheckStart(const SequenceStart& start) const {
  const auto check = [&]() -> Status {
    if (!start.prompt || !start.params) return InvalidArgument("no prompt or no parameters");
    MR_RETURN_IF_ERROR(CheckTokens(*start.prompt));
    if (start.output) MR_RETURN_IF_ERROR(CheckTokens(*start.output));
    MR_RETURN_IF_ERROR(CheckTokens(start.params->stop_token_ids));
    for (const auto& [token, bias] : start.params->logit_bias) {
      MR_RETURN_IF_ERROR(CheckTokens({&token, 1}));
    }
    return OkStatus();
  };
  Status sound = check();
  if (sound.ok()) return sound;
  return sound.WithContext(fmt::format("the start of sequence {}", start.id.value()));
}

Status StepChecker::CheckSequence(const StepPlan& plan, const SequenceStep& step,
                                  int64_t first_token) {
  const auto invalid = [&](std::string_view what) {
    return InvalidArgument(fmt::format("sequence {} {}", step.id.value(), what));
  };
  const auto found = known_.find(step.id);
  if (found == known_.end()) return invalid("was never started");
  Known& known = found->second;
  if (std::exchange(known.step, steps_) == steps_) return invalid("appears twice in the step");
  const int64_t end = int64_t{step.start} + step.num_tokens;
  if (step.num_tokens < 1 || step.start < 0 || end > limits_.max_model_len) {
    return invalid(fmt::format("has {} tokens from {}, the limit of the model is {}",
                               step.num_tokens, step.start, limits_.max_model_len));
  }
  if (step.first_token != first_token ||
      step.first_token + int64_t{step.num_tokens} > std::ssize(plan.tokens)) {
    return invalid("does not have the tokens after those of the sequence before it");
  }
  if (step.keep_blocks < 0 || step.keep_blocks > known.blocks || step.first_new_block < 0 ||
      step.num_new_blocks < 0 ||
      step.first_new_block + int64_t{step.num_new_blocks} > std::ssize(plan.blocks)) {
    return invalid("has a malformed block table");
  }
  const int64_t blocks = int64_t{step.keep_blocks} + step.num_new_blocks;
  if (end > blocks * limits_.block_size) return invalid("is beyond its blocks");
  known.blocks = static_cast<int32_t>(blocks);
  if (!step.only_layers) return OkStatus();
  if (step.only_layers->begin < 0 || step.only_layers->size() < 1) {
    return invalid("has an invalid range of layers");
  }
  if (step.logits != LogitsWanted::kNone) return invalid("has logits of only some layers");
  return OkStatus();
}

}  // namespace millrace
