// What a step is made of.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "sched/testing/harness.h"
#include "sched/testing/small.h"

namespace millrace::sched {
namespace {

SchedulerOptions PrefillFirst() {
  SchedulerOptions o = Small();
  o.step_mix = StepMix::kPrefillFirst;
  return o;
}

// vLLM v0.2: no step has both prompts and decodes. Every prompt fits a step whole and has two
// tokens or more, so that what a sequence computes tells which it is.
TEST(PrefillFirst, StepsArePure) {
  int prompts = 0, decodes = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    SchedulerOptions o = PrefillFirst();
    o.num_blocks = 24;
    o.max_num_seqs = 4;
    o.max_num_batched_tokens = 4 * 40;
    o.stages = static_cast<int>(rng.Between(1, 3));
    Harness h({.scheduler = o});
    for (int i = 0; i < 30; ++i) {
      h.MustAdd(Prompt(static_cast<int>(rng.Between(2, 20))),
                MaxTokens(static_cast<int>(rng.Between(1, 20))));
    }
    while (h.scheduler().HasWork()) {
      const StepPlan* plan = h.Schedule();
      if (!plan) {
        h.Commit();
        continue;
      }
      const auto decoding = std::ranges::count(plan->sequences, 1, &SequenceStep::num_tokens);
      EXPECT_TRUE(decoding == 0 || decoding == std::ssize(plan->sequences));
      ++(decoding == 0 ? prompts : decodes);
    }
  }
  EXPECT_GT(prompts, 500);
  EXPECT_GT(decodes, 500);
}

// A prompt that can start goes before every decode, but not for ever.
TEST(PrefillFirst, AStreamOfPromptsDoesNotStarveDecodes) {
  Harness h({.scheduler = PrefillFirst()});
  const RequestId first = h.MustAdd(Prompt(4), MaxTokens(5));
  h.Turn();
  int turns = 0;
  for (; !h.finished(first); ++turns) {
    ASSERT_LT(turns, 100);
    h.MustAdd(Prompt(3), MaxTokens(1));
    h.Turn();
  }
  // Four more tokens, a step of decodes after every sixteen of prompts; its own was the first.
  EXPECT_EQ(turns, 4 * 17 - 1);
}

}  // namespace
}  // namespace millrace::sched
