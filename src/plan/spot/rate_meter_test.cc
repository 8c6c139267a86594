#include "plan/spot/rate_meter.h"

#include <gtest/gtest.h>

#include "base/testing/test_time.h"

namespace millrace::plan::spot {
namespace {

TEST(RateMeterTest, TakesTheGreaterWindowAndTheQueue) {
  RateMeter meter;
  EXPECT_EQ(meter.RequestsPerSecond(At(0), 0), 0);
  for (int i = 0; i < 300; ++i) meter.Arrive(At(i));  // 1/s for 300 s
  EXPECT_NEAR(meter.RequestsPerSecond(At(300), 0), 1, 0.01);
  for (int i = 0; i < 120; ++i) meter.Arrive(At(300 + i * 0.25));  // 4/s for 30 s
  EXPECT_NEAR(meter.RequestsPerSecond(At(330), 0), 4, 0.1) << "the short window sees the burst";
  EXPECT_NEAR(meter.RequestsPerSecond(At(390), 0), 1.1, 0.01) << "the long one remembers it";
  EXPECT_NEAR(meter.RequestsPerSecond(At(390), 60), 1.6, 0.01) << "the queue must drain";
  EXPECT_EQ(meter.RequestsPerSecond(At(2000), 0), 0);
}

}  // namespace
}  // namespace millrace::plan::spot
