// FakeExecutor: an Executor without a model. Every token is a hash of the whole context, read
// through the block tables of the plans (sched/testing/context_hash_model.h), so a wrong block is
// detected at once. Runs each step as late as possible, inside Wait, so that blocks that are reused
// too early are detected as well.
//
// One thread, like every Executor.
#pragma once

#include <deque>

#include "engine/executor.h"
#include "sched/testing/context_hash_model.h"

namespace millrace::engine {

class FakeExecutor : public Executor {
 public:
  FakeExecutor(const ExecutorTraits& traits, int vocab_size,
               std::vector<TokenId> eos_token_ids = {});

  const ExecutorTraits& traits() const override { return traits_; }
  void Submit(const StepPlan& plan) override;
  const StepResult& Wait() override;

  const sched::ContextHashModel& model() const { return model_; }

 private:
  ExecutorTraits traits_;
  sched::ContextHashModel model_;
  std::deque<StepPlan> plans_;
  StepResult result_;
};

}  // namespace millrace::engine
