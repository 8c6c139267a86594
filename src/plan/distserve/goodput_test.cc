#include "plan/distserve/goodput.h"

#include <gtest/gtest.h>

#include <cmath>

namespace millrace::plan {
namespace {

// Attainment falls through the target exactly at `knee`.
TrialFn Knee(double knee, double spread = 0) {
  return [=](double rate, uint64_t seed) {
    const double at = knee * (1 + spread * (static_cast<double>(seed % 5) - 2));
    const double both = rate <= at ? 0.95 : 0.4;
    return Attainment{both, both, 1};
  };
}

TEST(Goodput, FindsTheKneeFromAnyGuess) {
  for (const double knee : {0.004, 0.7, 13.0, 5000.0}) {
    for (const double guess : {1e-3, 1.0, 400.0}) {
      const auto found = FindGoodput(Knee(knee), {.precision = 1e-3}, guess);
      EXPECT_LE(found.requests_per_s, knee);
      EXPECT_GE(found.requests_per_s, knee * (1 - 2e-3)) << guess;
      EXPECT_EQ(LimitingMetric(found.above), "TTFT");
      EXPECT_LT(found.trials, 5 * 30);
    }
  }
}

TEST(Goodput, NothingPassesAndEverythingPasses) {
  const auto none = FindGoodput([](double, uint64_t) { return Attainment{}; }, {});
  EXPECT_EQ(none.requests_per_s, 0);
  const auto all = FindGoodput(
      [](double, uint64_t) {
        return Attainment{1, 1, 1};
      },
      {.rate_max = 50});
  EXPECT_EQ(all.requests_per_s, 50);
}

TEST(Goodput, IntervalCoversTheSpreadOfSeeds) {
  const auto found = FindGoodput(Knee(10, 0.1), {.seeds = 5, .precision = 1e-3});
  EXPECT_NEAR(found.requests_per_s, 10, 0.05);
  // Five values 8, 9, 10, 11, 12: standard error sqrt(0.5), times 2.776.
  EXPECT_NEAR(found.half_width, 2.776 * std::sqrt(0.5), 0.05);
  EXPECT_EQ(FindGoodput(Knee(10), {.seeds = 1}).half_width, 0);
}

}  // namespace
}  // namespace millrace::plan
