#include "cluster/control/parts/copy_rate.h"

#include <gtest/gtest.h>

#include "base/testing/test_time.h"

namespace millrace::cluster {
namespace {

TEST(CopyRate, CountsTheTimeInWhichAnythingIsCopied) {
  CopyRate rate;
  EXPECT_EQ(rate.tokens_per_s(), std::nullopt);
  rate.Passed(false, At(100));  // two copies begin
  rate.Passed(true, At(102));
  rate.Arrived(300);
  rate.Passed(true, At(102));  // together
  rate.Arrived(100);
  EXPECT_NEAR(*rate.tokens_per_s(), 200, 1e-9);
  rate.Passed(false, At(1000));  // a pause changes nothing
  EXPECT_NEAR(*rate.tokens_per_s(), 200, 1e-9);
}

TEST(CopyRate, FollowsALinkThatBecomesSlow) {
  CopyRate rate;
  rate.Passed(false, At(0));
  rate.Passed(true, At(10));
  rate.Arrived(10'000);
  rate.Passed(false, At(20));
  for (int second = 21; second <= 80; ++second) {
    rate.Passed(true, At(second));
    rate.Arrived(10);
  }
  EXPECT_LT(*rate.tokens_per_s(), 30);
  EXPECT_GT(*rate.tokens_per_s(), 10);
}

}  // namespace
}  // namespace millrace::cluster
