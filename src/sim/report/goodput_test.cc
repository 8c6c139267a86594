#include "sim/report/goodput.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"

namespace millrace::sim {
namespace {

// Meets its limits up to `limit`, slightly different for each seed.
TrialRunner Service(double limit, double noise = 0) {
  return [limit, noise](double rate, uint64_t seed) -> Result<GoodputTrial> {
    const double mine = limit * (1 + noise * (UnitDouble(Mix64(seed)) - 0.5));
    return GoodputTrial{rate, seed, rate <= mine ? 1.0 : 0.0, rate <= mine};
  };
}

TEST(GoodputTest, FindsTheRateWithinItsTolerance) {
  for (const double limit : {0.013, 1.0, 7.7, 900.0}) {
    const auto found = FindGoodput({.tolerance = 0.02, .seeds = 1}, Service(limit));
    ASSERT_TRUE(found.ok());
    EXPECT_LE(found->rate.mean, limit);
    EXPECT_GE(found->rate.mean * 1.02, limit) << limit;
    EXPECT_LT(found->trials.size(), 30u);
    EXPECT_FALSE(found->unbounded);
  }
}

TEST(GoodputTest, TheIntervalIsOverSeeds) {
  const auto found =
      FindGoodput({.tolerance = 0.001, .seeds = 8, .first_seed = 5}, Service(10, 0.2));
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->per_seed.size(), 8u);
  EXPECT_LT(found->rate.low, 10);
  EXPECT_GT(found->rate.high, 10);
  EXPECT_GT(found->rate.high - found->rate.low, 0.1);
  // Later seeds begin where the first one ended.
  EXPECT_LT(found->trials.size(), 8 * 14u);
}

TEST(GoodputTest, NothingAndEverything) {
  const auto never = FindGoodput({.seeds = 2}, Service(0));
  ASSERT_TRUE(never.ok());
  EXPECT_EQ(never->rate.mean, 0);
  const auto always = FindGoodput({.seeds = 1, .rate_max = 50}, Service(1e9));
  ASSERT_TRUE(always.ok());
  EXPECT_TRUE(always->unbounded);
  EXPECT_EQ(always->rate.mean, 50);
}

TEST(GoodputTest, AnErrorEndsTheSearch) {
  const auto failed = FindGoodput(
      {}, [](double, uint64_t) -> Result<GoodputTrial> { return InvalidArgument("no"); });
  EXPECT_EQ(failed.status().message(), "no");
}

}  // namespace
}  // namespace millrace::sim
