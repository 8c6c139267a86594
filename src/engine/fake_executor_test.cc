#include "engine/fake_executor.h"

#include <gtest/gtest.h>

#include "sched/scheduler.h"

namespace millrace::engine {
namespace {

// The loop of sched/scheduler.h, with both halves real and only the arithmetic fake.
TEST(FakeExecutor, AnswersTheSchedulerLikeTheModelAlone) {
  const ExecutorTraits traits{.stages = 2,
                              .block_size = 4,
                              .num_blocks = 16,
                              .num_host_blocks = 0,
                              .max_batched_tokens = 8,
                              .max_sequences = 4};
  FakeExecutor executor(traits, 100);
  sched::SchedulerOptions options;
  options.block_size = traits.block_size;
  options.num_blocks = traits.num_blocks;
  options.max_num_seqs = traits.max_sequences;
  options.max_num_batched_tokens = traits.max_batched_tokens;
  options.max_model_len = 64;
  options.stages = traits.stages;
  auto scheduler = std::move(sched::Scheduler::Create(options)).value();
  const std::vector<TokenId> prompt = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  SamplingParams params;
  params.max_tokens = 9;
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(scheduler
                    ->Add({.id = RequestId(id),
                           .prompt = std::make_shared<const std::vector<TokenId>>(prompt),
                           .params = std::make_shared<const SamplingParams>(params),
                           .seed = id},
                          Time{})
                    .ok());
  }
  std::vector<RequestOutput> outputs;
  while (scheduler->HasWork()) {
    while (const StepPlan* plan = scheduler->Schedule(Time{})) executor.Submit(*plan);
    ASSERT_GT(scheduler->steps_in_flight(), 0);
    scheduler->Commit(executor.Wait(), Time{}, outputs);
  }
  for (uint64_t id = 1; id <= 3; ++id) {
    std::vector<TokenId> tokens;
    for (const RequestOutput& out : outputs) {
      if (out.request == RequestId(id))
        tokens.insert(tokens.end(), out.tokens.begin(), out.tokens.end());
    }
    EXPECT_EQ(tokens, executor.model().Generate(prompt, params, id, 9));
  }
}

}  // namespace
}  // namespace millrace::engine
