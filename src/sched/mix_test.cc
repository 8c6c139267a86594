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

SchedulerOptions EvenSteps(int stages) {
  SchedulerOptions o = Small();
  o.num_blocks = 400;
  o.max_num_seqs = 64;
  o.max_num_batched_tokens = 512;
  o.stages = stages;
  o.even_steps = true;
  return o;
}

// Orca, section 4.2: as many batches in flight as stages. Sixteen streams that would all fit into
// one step keep every stage busy, from the first step to the last token.
TEST(EvenSteps, FewSequencesKeepEveryStageBusy) {
  for (int stages = 1; stages <= 5; ++stages) {
    Harness h({.scheduler = EvenSteps(stages)});
    for (int i = 0; i < 16; ++i) h.MustAdd(Prompt(6), MaxTokens(10));
    int steps = 0;
    while (h.scheduler().HasWork()) {
      while (const StepPlan* plan = h.Schedule()) {
        EXPECT_LE(std::ssize(plan->sequences), (16 + stages - 1) / stages);
        ++steps;
      }
      if (steps < 10 * stages) {
        EXPECT_EQ(h.in_flight(), stages);
      }
      h.Commit();
    }
    EXPECT_EQ(steps, 10 * stages);
  }
}

// However requests come and go, a sequence that can run is in one of the next steps.
TEST(EvenSteps, NobodyIsPassedOver) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const int stages = static_cast<int>(rng.Between(2, 5));
    Harness h({.scheduler = EvenSteps(stages)});
    std::map<SequenceId, uint64_t> last_in;
    int left = 40;
    while (left > 0 || h.scheduler().HasWork()) {
      for (auto n = std::min<int64_t>(left, rng.Between(0, 2)); n > 0; --n, --left) {
        h.MustAdd(Prompt(static_cast<int>(rng.Between(1, 9))),
                  MaxTokens(static_cast<int>(rng.Between(1, 30))));
      }
      while (const StepPlan* plan = h.Schedule()) {
        for (const SequenceStep& s : plan->sequences) {
          const auto [entry, first] = last_in.try_emplace(s.id, plan->id.value());
          if (!first)
            EXPECT_LE(plan->id.value() - entry->second, 2 * static_cast<uint64_t>(stages));
          entry->second = plan->id.value();
        }
      }
      if (h.in_flight() > 0) h.Commit();
    }
    EXPECT_EQ(last_in.size(), 40u);
  }
}

}  // namespace
}  // namespace millrace::sched
