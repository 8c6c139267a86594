// Arrivals have the stated variation.
#include "experiments/lib/spotserve/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace millrace::experiments::spotserve {
namespace {

double Variation(const std::vector<double>& times) {
  double mean = times.back() / static_cast<double>(times.size()), squares = 0, last = 0;
  for (const double t : times) {
    squares += (t - last - mean) * (t - last - mean);
    last = t;
  }
  return std::sqrt(squares / static_cast<double>(times.size())) / mean;
}

TEST(SpotArrivalsTest, SpreadHasTheStatedVariation) {
  // "CV = 6" of the released generator is 0.046; the shipped file's first gaps have sd 0.099 s.
  const auto published = Arrivals(0.35, 20'000, {.spread = Spread::kAsPublished, .cv = 6});
  EXPECT_NEAR(static_cast<double>(published.size()), 7000, 40);
  EXPECT_NEAR(Variation(published), std::sqrt(6 * 0.35 / 1000), 0.003);
  const auto gamma = Arrivals(0.35, 3'000'000, {.spread = Spread::kGamma, .cv = 6});
  EXPECT_NEAR(Variation(gamma), 6, 0.4);
  EXPECT_NEAR(static_cast<double>(gamma.size()) / 3'000'000, 0.35, 0.02);
  EXPECT_EQ(gamma, Arrivals(0.35, 3'000'000, {.spread = Spread::kGamma, .cv = 6}));
}

TEST(SpotArrivalsTest, RatesChangeByTheMinute) {
  const std::vector<double> rates = {1, 3, 2};
  const auto times = ArrivalsByMinute(rates, 240, {});
  int per_minute[4] = {};
  for (const double t : times) ++per_minute[static_cast<int>(t / 60)];
  EXPECT_NEAR(per_minute[0], 60, 2);
  EXPECT_NEAR(per_minute[1], 180, 4);
  EXPECT_NEAR(per_minute[2], 120, 3);
  EXPECT_NEAR(per_minute[3], 120, 3) << "the last rate continues";
}

}  // namespace
}  // namespace millrace::experiments::spotserve
