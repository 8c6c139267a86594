#include "cost/pace.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace::cost {
namespace {

// Two seconds as usual, then one second of work in four.
Pace Uneven() {
  auto pace = Pace::Create({{1, 2, 2}, {1, 1, 4}});
  EXPECT_TRUE(pace.ok()) << pace.status().ToString();
  return std::move(pace).value();
}

TEST(PaceTest, WorkTakesAsLongAsItDidThen) {
  const Pace pace = Uneven();
  EXPECT_DOUBLE_EQ(pace.length_s(), 6);
  EXPECT_DOUBLE_EQ(pace.slowdown_few(), 2);
  EXPECT_DOUBLE_EQ(pace.slowdown_many(), 2);  // the only past there is
  EXPECT_DOUBLE_EQ(pace.Seconds(0.5, 1, 1), 0.5);
  EXPECT_DOUBLE_EQ(pace.Seconds(0.5, 1, 3), 2);
  EXPECT_DOUBLE_EQ(pace.Seconds(1, 1, 1.5), 0.5 + 2);  // half of it in the slow part
  EXPECT_DOUBLE_EQ(pace.Seconds(0, 1, 3), 0);
}

TEST(PaceTest, ThePastRepeats) {
  const Pace pace = Uneven();
  for (const double at : {0.3, 1.9, 2.0, 4.4}) {
    EXPECT_NEAR(pace.Seconds(0.7, 1, at), pace.Seconds(0.7, 1, at + 6 * 5), 1e-9) << at;
    EXPECT_NEAR(pace.Seconds(3 * 7 + 0.7, 1, at), 6 * 7 + pace.Seconds(0.7, 1, at), 1e-9) << at;
  }
}

TEST(PaceTest, WorkInTwoPartsTakesAsLongAsInOne) {
  const Pace pace = Uneven();
  for (double at = 0; at < 6; at += 0.37) {
    const double first = pace.Seconds(0.8, 1, at);
    EXPECT_NEAR(first + pace.Seconds(1.3, 1, at + first), pace.Seconds(2.1, 1, at), 1e-9) << at;
  }
}

// Half the past was slow for steps of few tokens: a third of what was measured, half of the time.
TEST(PaceTest, EachKindOfStepHasAPastOfItsOwn) {
  const auto pace = Pace::Create({{1, 1, 1}, {100, 5, 5}, {1, 1, 2}, {100, 5, 5}});
  ASSERT_TRUE(pace.ok());
  EXPECT_DOUBLE_EQ(pace->length_s(), 13);
  EXPECT_DOUBLE_EQ(pace->slowdown_few(), 1.5);
  EXPECT_DOUBLE_EQ(pace->slowdown_many(), 1);
  const double slow_from_s = 13.0 / 3;
  EXPECT_DOUBLE_EQ(pace->Seconds(0.5, 16, 1), 0.5);
  EXPECT_NEAR(pace->Seconds(0.5, Pace::kFewTokens, slow_from_s), 1, 1e-9);
  EXPECT_NEAR(pace->Seconds(0.5, Pace::kFewTokens + 1, slow_from_s), 0.5, 1e-9);
  EXPECT_NEAR(pace->Seconds(0.5, 16, 13), 0.5, 1e-9);
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
