#include "engine/fake_executor.h"

#include <utility>

#include "base/check.h"

namespace millrace::engine {

FakeExecutor::FakeExecutor(const ExecutorTraits& traits, int vocab_size,
                           std::vector<TokenId> eos_token_ids)
    : traits_(traits),
      model_({.block_size = traits.block_size,
              .num_blocks = traits.num_blocks,
              .num_host_blocks = traits.num_host_blocks,
              .vocab_size = vocab_size,
              .eos_token_ids = std::move(eos_token_ids)}) {}

void FakeExecutor::Submit(const StepPlan& plan) {
  MR_CHECK(std::ssize(plans_) < traits_.stages) << "more steps in flight than stages";
  MR_CHECK(std::ssize(plan.tokens) <= traits_.max_batched_tokens);
  MR_CHECK(std::ssize(plan.sequences) <= traits_.max_sequences);
  plans_.push_back(plan);
}

const StepResult& FakeExecutor::Wait() {
  MR_CHECK(!plans_.empty()) << "no step in flight";
  result_ = model_.Run(plans_.front());
  plans_.pop_front();
  return result_;
}

}  // namespace millrace::engine
