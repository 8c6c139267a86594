// A load that varies over time: values by hand, and its shares over many arrivals.
#include "sim/load/rate_shape.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "base/rng.h"
#include "sim/load/workload.h"

namespace millrace::sim {
namespace {

RateShape Shape(std::vector<double> rates, double every_s) {
  double mean = 0;
  return ShapeOf(std::move(rates), every_s, mean).value();
}

TEST(RateShape, PassesTheMeansTime) {
  const RateShape shape = Shape({1, 3}, 10);  // 0.5 and 1.5 times the mean
  EXPECT_DOUBLE_EQ(shape.After(0, 2), 4);
  EXPECT_DOUBLE_EQ(shape.After(4, 3), 10) << "to the border";
  EXPECT_DOUBLE_EQ(shape.After(4, 6), 12) << "3 until the border, 3 at 1.5";
  EXPECT_DOUBLE_EQ(shape.After(0, 20), 20) << "one full period at the mean rate";
  EXPECT_DOUBLE_EQ(shape.After(5, 20e6), 20e6 + 5);
  EXPECT_DOUBLE_EQ(RateShape{}.After(5, 7), 12);
  EXPECT_EQ(shape.After(5, std::numeric_limits<double>::infinity()),
            std::numeric_limits<double>::infinity());
}

TEST(RateShape, NoArrivalsWhileTheRateIsZero) {
  const RateShape shape = Shape({0, 5, 0}, 60);
  EXPECT_GE(shape.After(0, 1e-9), 60);
  EXPECT_GE(shape.After(119.999, 30), 240);
  double at_s = 0;
  Rng rng(1);
  for (int i = 0; i < 100'000; ++i) {
    const double next_s = shape.After(at_s, rng.Uniform());
    ASSERT_GE(next_s, at_s);
    at_s = next_s;
    const double in_period_s = at_s - 180 * static_cast<int>(at_s / 180);
    ASSERT_TRUE(in_period_s >= 60 - 1e-6 && in_period_s <= 120 + 1e-6) << at_s;
  }
}

TEST(RateShape, ArrivalsFollowTheRates) {
  std::array<double, 4> count{};
  const auto workload = NewSynthetic(
      {.requests = 200'000, .rate = 10, .shape = Shape({4, 8, 16, 12}, 100), .seed = 2});
  double last_s = 0;
  while (const auto request = workload->Next()) {
    last_s = static_cast<double>(request->arrival.ns) * 1e-9;
    ++count[static_cast<size_t>(last_s / 100) % 4];
  }
  EXPECT_NEAR(last_s, 20'000, 200);
  EXPECT_NEAR(count[0] / 200'000, 0.1, 0.005);
  EXPECT_NEAR(count[1] / 200'000, 0.2, 0.005);
  EXPECT_NEAR(count[2] / 200'000, 0.4, 0.005);
  EXPECT_NEAR(count[3] / 200'000, 0.3, 0.005);
}

TEST(RateShape, ReadsNumbersAndRefusesWords) {
  EXPECT_EQ(*ParseRates("0.5,1.25\n2;3 \r\n"), (std::vector<double>{0.5, 1.25, 2, 3}));
  EXPECT_TRUE(ParseRates("")->empty());
  EXPECT_NE(ParseRates("1,x").status().message().find("number 2"), std::string::npos);
  double mean = 0;
  EXPECT_FALSE(ShapeOf({}, 60, mean).ok());
  EXPECT_FALSE(ShapeOf({0, 0}, 60, mean).ok());
  EXPECT_FALSE(ShapeOf({1, -1}, 60, mean).ok());
  EXPECT_FALSE(ShapeOf({1, 1e9}, 60, mean).ok());
  EXPECT_FALSE(ShapeOf({1, std::numeric_limits<double>::quiet_NaN()}, 60, mean).ok());
  EXPECT_TRUE(ShapeOf({1, 3}, 60, mean).ok());
  EXPECT_EQ(mean, 2);
}

}  // namespace
}  // namespace millrace::sim
