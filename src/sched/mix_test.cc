// The composition of a step.
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

// vLLM v0.2: no step has both prompts and decodes. Every prompt fits into one step and has at least
// two tokens, so the number of tokens tells prompts from decodes.
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

// A prompt that can start goes before every decode, but not indefinitely.
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
  // Four more tokens need a step of decodes after every sixteen of prompts; its own was the first.
  EXPECT_EQ(turns, 4 * 17 - 1);
}

SchedulerOptions EvenSteps(int stages) {
  SchedulerOptions o = Small();
  o.num_blocks = 400;
  o.max_num_seqs = 64;
  o.max_model_len = 512;
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

// Duration of the steps in a pipeline whose stages need one unit per token, at least `floor`.
class Timeline {
 public:
  Timeline(int stages, int floor) : stages_(stages), floor_(floor), stage_free_(stages) {}

  // There are as many steps in flight as stages: a step starts when the one before those has left.
  void Add(const StepPlan& plan) {
    const int units = std::max(floor_, static_cast<int>(plan.tokens.size()));
    const size_t step = done_.size();
    int64_t ready = step < stages_ ? 0 : done_[step - stages_];
    for (int64_t& free : stage_free_) ready = free = std::max(ready, free) + units;
    done_.push_back(ready);
    work_ += units;
  }
  int64_t end() const { return done_.back(); }
  int64_t work() const { return work_; }  // of one stage

 private:
  const size_t stages_;
  const int floor_;
  int64_t work_ = 0;
  std::vector<int64_t> stage_free_;
  std::vector<int64_t> done_;
};

// With several prompts waiting, the last stage does not wait for a step that has half of them.
TEST(EvenSteps, PromptsFillThePipelineSoon) {
  for (int stages = 2; stages <= 4; ++stages) {
    SCOPED_TRACE(testing::Message() << stages << " stages");
    Harness h({.scheduler = EvenSteps(stages)});
    for (int i = 0; i < 16; ++i) h.MustAdd(Prompt(32), MaxTokens(1));
    Timeline timeline(stages, /*floor=*/16);
    while (h.scheduler().HasWork()) {
      while (const StepPlan* plan = h.Schedule()) {
        EXPECT_EQ(plan->tokens.size(), 64u);
        timeline.Add(*plan);
      }
      h.Commit();
    }
    EXPECT_EQ(timeline.work(), 16 * 32);
    EXPECT_EQ(timeline.end(), 16 * 32 + (stages - 1) * 64);
  }
}

// However many requests wait, a step's token limit bounds how many it starts. A single prompt is
// not cut, because a sequence is in one step at a time.
TEST(EvenSteps, PromptsAreNotSpreadThinner) {
  Harness many({.scheduler = EvenSteps(2)});
  for (int i = 0; i < 256; ++i) many.MustAdd(Prompt(8), MaxTokens(1));
  EXPECT_EQ(many.Schedule()->sequences.size(), 256u / (2 * 4));
  Harness one({.scheduler = EvenSteps(2)});
  one.MustAdd(Prompt(400), MaxTokens(1));
  EXPECT_EQ(one.Schedule()->tokens.size(), 400u);
  Harness long_ones({.scheduler = EvenSteps(2)});
  for (int i = 0; i < 2; ++i) long_ones.MustAdd(Prompt(200), MaxTokens(1));
  EXPECT_EQ(long_ones.Schedule()->tokens.size(), 200u);
  EXPECT_EQ(long_ones.Schedule()->tokens.size(), 200u);
  Harness short_ones({.scheduler = EvenSteps(2)});
  for (int i = 0; i < 4; ++i) short_ones.MustAdd(Prompt(8), MaxTokens(1));
  EXPECT_EQ(short_ones.Schedule()->sequences.size(), 2u);  // its even share of them
}

// However requests arrive and end, a sequence that can run is in one of the next steps.
TEST(EvenSteps, NoSequenceIsSkipped) {
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
