#include "cost/pace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace millrace::cost {
namespace {

// Steps of 0.1 s; at 1.0 s the machine stalls for 0.2 s.
Pace Uneven() {
  std::vector<PaceStretch> stretches(21, {1, 0.1, 0.1});
  stretches[10].took_s = 0.3;
  auto pace = Pace::Create(std::move(stretches));
  EXPECT_TRUE(pace.ok()) << pace.status().ToString();
  return std::move(pace).value();
}

constexpr double kClose_s = 1e-5;  // a stall does a little work

TEST(PaceTest, AStallDelaysWhicheverStepRuns) {
  const Pace pace = Uneven();
  EXPECT_NEAR(pace.length_s(), 2.3, 1e-9);
  for (const int64_t tokens : {1, 500}) {
    EXPECT_NEAR(pace.Seconds(0.05, tokens, 0.3), 0.05, kClose_s);
    EXPECT_NEAR(pace.Seconds(0.1, tokens, 0.95), 0.3, kClose_s);   // spans the whole stall
    EXPECT_NEAR(pace.Seconds(0.05, tokens, 1.1), 0.15, kClose_s);  // begins in the middle of it
    EXPECT_NEAR(pace.Seconds(0.05, tokens, 1.2), 0.05, kClose_s);
    EXPECT_NEAR(pace.Seconds(0, tokens, 1.1), 0, kClose_s);
  }
  EXPECT_NEAR(pace.slowdown_few(), 2.3 / 2.1, kClose_s);
  EXPECT_NEAR(pace.slowdown_many(), 2.3 / 2.1, kClose_s);
}

TEST(PaceTest, ThePastRepeats) {
  const Pace pace = Uneven();
  for (const double at : {0.3, 0.9, 1.1, 2.2}) {
    EXPECT_NEAR(pace.Seconds(0.7, 1, at), pace.Seconds(0.7, 1, at + 2.3 * 5), 1e-9) << at;
    EXPECT_NEAR(pace.Seconds(2.100001 * 7 + 0.7, 1, at), 2.3 * 7 + pace.Seconds(0.7, 1, at), 1e-9)
        << at;
  }
}

TEST(PaceTest, WorkInTwoPartsTakesAsLongAsInOne) {
  const Pace pace = Uneven();
  for (double at = 0; at < 2.3; at += 0.17) {
    const double first = pace.Seconds(0.8, 1, at);
    EXPECT_NEAR(first + pace.Seconds(1.3, 1, at + first), pace.Seconds(2.1, 1, at), 1e-9) << at;
  }
}

// In the second half, steps of few tokens took twice as long, and those of many tokens the same as
// before.
TEST(PaceTest, EachKindOfStepHasASpeedOfItsOwn) {
  std::vector<PaceStretch> stretches;
  for (int i = 0; i < 200; ++i) {
    stretches.push_back({1, 0.01, i < 100 ? 0.01 : 0.02});
    stretches.push_back({100, 0.09, 0.09});
  }
  const auto pace = Pace::Create(std::move(stretches));
  ASSERT_TRUE(pace.ok());
  EXPECT_NEAR(pace->length_s(), 10 + 11, 1e-9);
  for (const double begin_s : {5.0, 15.0}) {
    const double slowness = begin_s < 10 ? 1 : 2;
    EXPECT_NEAR(pace->Seconds(0.5, Pace::kFewTokens, begin_s), slowness * 0.5, kClose_s);
    EXPECT_NEAR(pace->Seconds(0.5, Pace::kFewTokens + 1, begin_s), 0.5, kClose_s);
  }
  EXPECT_NEAR(pace->slowdown_many(), 1, 1e-3);
  EXPECT_NEAR(pace->slowdown_few(), 21 / (10 + 11 / 2.0), 1e-2);
}

TEST(PaceTest, MalformedStretchesAreRefused) {
  EXPECT_FALSE(Pace::Create({}).ok());
  EXPECT_FALSE(Pace::Create({{1, 1, 1}, {1, 0, 1}}).ok());
  EXPECT_FALSE(Pace::Create({{1, 1, -1}}).ok());
  EXPECT_FALSE(Pace::Create({{1, std::nan(""), 1}}).ok());
  EXPECT_FALSE(Pace::Create({{1, 1, INFINITY}}).ok());
}

}  // namespace
}  // namespace millrace::cost
