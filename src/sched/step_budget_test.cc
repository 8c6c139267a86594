#include "sched/step_budget.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::sched {
namespace {

constexpr Duration kLimit = Duration::Millis(50);

// A step of a machine that takes 10 ms, and 0.2 ms per token.
TimedStep StepOf(int decodes, int prompts) {
  const Duration took = Duration::Millis(10) + Duration::Micros(200 * (decodes + prompts));
  return {.tokens = decodes + prompts, .decodes = decodes, .took = took, .round_trip = took};
}

TEST(StepBudget, FindsTheLargestStepsThatKeepTheLimit) {
  StepBudget budget(kLimit, 2048);
  int late = 0;
  double tokens = 0;
  for (int step = 0; step < 400; ++step) {
    const TimedStep timed = StepOf(20, std::max(budget.tokens() - 20, 16));
    late += step >= 100 && timed.round_trip > kLimit ? 1 : 0;
    if (step >= 100) tokens += timed.tokens / 300.0;
    budget.Ended(timed);
  }
  EXPECT_EQ(late, 0) << "after the first steps";
  EXPECT_GT(tokens, 0.85 * 200) << "a step of 200 tokens takes the limit";
}

TEST(StepBudget, ALongStepBetweenShortOnesDoesNoHarm) {
  StepBudget budget(kLimit, 2048);
  for (int step = 0; step < 100; ++step) {
    EXPECT_FALSE(budget.Ended(step % 16 == 0 ? StepOf(20, 1000) : StepOf(20, 0)));
  }
  EXPECT_EQ(budget.tokens(), 2048);
}

TEST(StepBudget, PromptsAloneDelayNobody) {
  StepBudget budget(kLimit, 2048);
  for (int step = 0; step < 100; ++step) EXPECT_FALSE(budget.Ended(StepOf(0, 2048)));
}

// Nothing can be taken out of a step of decodes.
TEST(StepBudget, DecodesAloneDoNotShrinkIt) {
  StepBudget budget(kLimit, 2048);
  for (int step = 0; step < 100; ++step) EXPECT_FALSE(budget.Ended(StepOf(500, 0)));
}

TEST(StepBudget, OneVerySlowStepTakesThreeQuartersAtMost) {
  StepBudget budget(kLimit, 1000);
  TimedStep slow = StepOf(20, 400);
  slow.round_trip = Duration::Seconds(10);
  EXPECT_TRUE(budget.Ended(slow));
  EXPECT_EQ(budget.tokens(), 105);
}

TEST(StepBudget, SmallStepsDoNotGrowIt) {
  StepBudget budget(kLimit, 1000);
  TimedStep slow = StepOf(20, 400);
  slow.round_trip = Duration::Seconds(10);
  EXPECT_TRUE(budget.Ended(slow));
  for (int step = 0; step < 96; ++step) EXPECT_FALSE(budget.Ended(StepOf(20, 10)));
  for (int step = 0; step < 15; ++step) EXPECT_FALSE(budget.Ended(StepOf(20, 85)));
  EXPECT_TRUE(budget.Ended(StepOf(20, 85))) << "full steps, and fast enough";
}

}  // namespace
}  // namespace millrace::sched
