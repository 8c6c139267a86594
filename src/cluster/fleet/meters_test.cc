// What machines do, and what they cost.
#include <gtest/gtest.h>

#include "base/testing/test_time.h"
#include "cluster/fleet/capacity_meter.h"
#include "cluster/fleet/cost_meter.h"

namespace millrace::cluster {
namespace {

TEST(CapacityMeterTest, AFileThatIsWrongByTenTimesIsCorrected) {
  CapacityMeter meter({});
  meter.Restart(At(0));
  EXPECT_FALSE(meter.Due(At(29)));
  ASSERT_TRUE(meter.Due(At(30)));
  // The file says 20 requests/s; 2 are answered while 5 come and wait.
  meter.Judge(
      {.nominal_per_s = 20, .arrivals_per_s = 5, .answers_per_s = 2, .answers = 60, .queued = true},
      At(30));
  EXPECT_DOUBLE_EQ(meter.factor(), 0.1);
  // It says 2, and 20 are answered within the limits.
  meter.Judge({.nominal_per_s = 2, .arrivals_per_s = 20, .answers_per_s = 20, .answers = 600},
              At(60));
  EXPECT_DOUBLE_EQ(meter.factor(), 10);
}

TEST(CapacityMeterTest, MissedLimitsLowerItAndQuietTimesBringItBack) {
  CapacityMeter meter({.share = 0.9});
  meter.Judge({.nominal_per_s = 10,
               .arrivals_per_s = 5,
               .answers_per_s = 5,
               .answers = 150,
               .attainment = 0.5},
              At(30));
  EXPECT_DOUBLE_EQ(meter.factor(), 0.8);
  meter.Judge({.nominal_per_s = 10,
               .arrivals_per_s = 0.1,
               .answers_per_s = 0.1,
               .answers = 3,
               .attainment = 0},
              At(60));
  EXPECT_GT(meter.factor(), 0.8) << "three answers say nothing";
  for (int i = 0; i < 300; ++i) meter.Judge({.nominal_per_s = 10}, At(90 + i * 30));
  EXPECT_NEAR(meter.factor(), 1, 0.01);
}

// SpotServe, section 6.1: cost per token = price / (requests * (512 + 128)).
TEST(CostMeterTest, ChargesMachinesAndDividesByTokens) {
  CostMeter meter;
  EXPECT_EQ(meter.UsdPerMillionTokensOver(CostMeter::kNow, At(0)), std::nullopt);
  meter.SetUsdPerHour(3.6, At(0));
  for (int second = 0; second < 60; ++second) {
    meter.AddTokens(1000, At(second));
    meter.SetUsdPerHour(3.6, At(second));
  }
  EXPECT_NEAR(*meter.UsdPerMillionTokensOver(CostMeter::kNow, At(60)), 1, 0.05);
  EXPECT_NEAR(meter.UsdOver(CostMeter::kHour, At(60)), 0.06, 0.001);
  // The machines stay, and nobody asks anything.
  for (int second = 60; second < 240; ++second) meter.SetUsdPerHour(7.2, At(second));
  EXPECT_EQ(meter.UsdPerMillionTokensOver(CostMeter::kNow, At(240)), std::nullopt);
  EXPECT_NEAR(*meter.UsdPerMillionTokensOver(CostMeter::kHour, At(240)), 7, 0.1);
  meter.SetUsdPerHour(0, At(4000));
  EXPECT_EQ(meter.UsdPerMillionTokensOver(CostMeter::kHour, At(4000)), std::nullopt);
}

TEST(CostMeterTest, WhatCostsNothingHasAPriceOfZero) {
  CostMeter meter;
  meter.SetUsdPerHour(0, At(0));
  meter.AddTokens(5, At(1));
  EXPECT_EQ(meter.UsdPerMillionTokensOver(CostMeter::kNow, At(2)), 0);
}

}  // namespace
}  // namespace millrace::cluster
