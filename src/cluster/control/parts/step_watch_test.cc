#include "cluster/control/parts/step_watch.h"

#include <gtest/gtest.h>

namespace millrace::cluster {
namespace {

constexpr StepWatchLimits kLimits;

StepWatch After(int steps, double took_s, int tokens) {
  StepWatch watch;
  for (int i = 0; i < steps; ++i) {
    watch.Ended({.tokens = tokens, .took = Duration::Seconds(took_s)});
  }
  return watch;
}

TEST(StepWatch, TheFirstStepsHaveLonger) {
  EXPECT_EQ(StepWatch().LimitFor(1, {}, kLimits), kLimits.first);
  EXPECT_EQ(After(7, 0.01, 4).LimitFor(4, {}, kLimits), kLimits.first);
  EXPECT_EQ(After(8, 0.01, 4).LimitFor(4, {}, kLimits), kLimits.least);
  EXPECT_EQ(After(2, 5, 4).LimitFor(4, {}, kLimits), Duration::Seconds(100))
      << "unless they are known to be slow";
}

TEST(StepWatch, ItIsManyTimesTheMedian) {
  EXPECT_EQ(After(30, 3, 4).LimitFor(4, {}, kLimits), Duration::Seconds(60));
  StepWatch mixed = After(30, 0.01, 4);
  for (int i = 0; i < 5; ++i) mixed.Ended({.tokens = 4, .took = Duration::Seconds(100)});
  EXPECT_EQ(mixed.LimitFor(4, {}, kLimits), kLimits.least) << "a few slow steps change nothing";
  for (int i = 0; i < 64; ++i) mixed.Ended({.tokens = 4, .took = Duration::Seconds(2)});
  EXPECT_EQ(mixed.LimitFor(4, {}, kLimits), Duration::Seconds(40)) << "older steps are forgotten";
}

TEST(StepWatch, StepsWithManyTokensMayTakeLonger) {
  const StepWatch decodes = After(30, 0.01, 1);
  EXPECT_EQ(decodes.LimitFor(8000, {}, kLimits).seconds(), 1600);
  EXPECT_EQ(decodes.LimitFor(8000, 1000, kLimits).seconds(), 160) << "by the measured rate";
  EXPECT_EQ(decodes.LimitFor(100, 1000, kLimits), kLimits.least);
}

}  // namespace
}  // namespace millrace::cluster
