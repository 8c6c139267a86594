#include "cluster/fleet/provider_troubles.h"

#include <gtest/gtest.h>

#include "base/testing/test_time.h"

namespace millrace::cluster {
namespace {

using enum ProviderCall;

TEST(ProviderTroublesTest, SaysAFailureOnceAndItsEndOnce) {
  ProviderTroubles troubles;
  EXPECT_TRUE(troubles.Failed(kList, "no route", At(1)));
  EXPECT_FALSE(troubles.Failed(kList, "no route", At(6)));
  EXPECT_FALSE(troubles.Failed(kPrice, "no route", At(7))) << "the same of another call";
  EXPECT_TRUE(troubles.Failed(kAcquire, "no quota", At(8)));
  EXPECT_EQ(troubles.Text(), "no quota");
  EXPECT_FALSE(troubles.Succeeded(kList)) << "others still fail";
  EXPECT_FALSE(troubles.Succeeded(kList));
  EXPECT_FALSE(troubles.Succeeded(kAcquire));
  EXPECT_EQ(troubles.Text(), "no route");
  EXPECT_TRUE(troubles.Succeeded(kPrice));
  EXPECT_EQ(troubles.Text(), "");
}

TEST(ProviderTroublesTest, TheBackOffDoublesUpToFiveMinutes) {
  ProviderTroubles troubles;
  for (const double pause_s : {5, 10, 20, 40, 80, 160, 300, 300}) {
    (void)troubles.Failed(kAcquire, "no quota", At(0));
    EXPECT_EQ(troubles.RetryAt(kAcquire), At(pause_s));
  }
  EXPECT_TRUE(troubles.Fails(kAcquire));
  EXPECT_FALSE(troubles.Fails(kRelease));
  (void)troubles.Succeeded(kAcquire);
  (void)troubles.Failed(kAcquire, "no quota", At(0));
  EXPECT_EQ(troubles.RetryAt(kAcquire), At(5));
}

}  // namespace
}  // namespace millrace::cluster
