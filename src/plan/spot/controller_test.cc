// Hysteresis and the measured arrival rate.
#include "plan/spot/controller.h"

#include <gtest/gtest.h>

#include "base/test_time.h"
#include "plan/spot/rate_meter.h"
#include "plan/spot/testing.h"

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

// A load that crosses a threshold of the optimizer once a second. The published rule changes with
// every sample, the controller at most once.
TEST(SpotControllerTest, OscillationMakesAtMostOneReconfiguration) {
  const SearchSpace space{.devices_min = 12, .devices_per_instance = 4};
  const Profile gpt = PublishedProfile("h6144");
  int thresholds = 0;
  for (const int devices : {24, 32, 40, 48}) {
    for (double load = 0.1; load < 1.2; load += 0.02) {
      const auto low = OptimizeAsPublished(gpt, space, devices, load);
      const auto high = OptimizeAsPublished(gpt, space, devices, load + 0.02);
      if (low->config == high->config) continue;
      ++thresholds;
      Controller controller(gpt, space, {});
      controller.Decide(At(0), devices, load, 10);
      int changes = 0;
      for (int second = 1; second <= 60; ++second) {
        const double alpha = second % 2 == 0 ? load : load + 0.02;
        const auto decision = controller.Decide(At(second), devices, alpha, 10);
        changes += decision.changed;
        ASSERT_FALSE(decision.forced);
      }
      EXPECT_LE(changes, 1) << devices << " devices, load " << load;
    }
  }
  EXPECT_GE(thresholds, 4);
}

TEST(SpotControllerTest, AlternatingByAnyAmountChangesRarely) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const Profile profile = RandomProfile(rng);
    Controller controller(profile, {.devices_min = 1}, {});
    const double a = 5 * rng.Uniform(), b = 5 * rng.Uniform();
    controller.Decide(At(0), 16, a, 10);
    int changes = 0;
    for (int second = 1; second <= 60; ++second) {
      changes += controller.Decide(At(second), 16, second % 2 ? b : a, 10).changed;
    }
    EXPECT_LE(changes, 1) << seed;
  }
}

TEST(SpotControllerTest, FollowsALoadThatStays) {
  const SearchSpace space{.devices_min = 12, .devices_per_instance = 4};
  Controller controller(PublishedProfile("h6144"), space, {});
  const auto before = controller.Decide(At(0), 48, 0.2, 10);
  EXPECT_TRUE(before.changed);
  bool changed = false;
  double at = 0;
  for (int second = 1; second <= 120 && !changed; ++second) {
    changed = controller.Decide(At(second), 48, 0.8, 10).changed;
    at = second;
  }
  EXPECT_TRUE(changed);
  EXPECT_LE(at, 60);
  EXPECT_GE(controller.current()->throughput_per_s, 0.8);
}

TEST(SpotControllerTest, LossForcesAChangeAtOnce) {
  const SearchSpace space{.devices_min = 12, .devices_per_instance = 4};
  Controller controller(PublishedProfile("h6144"), space, {});
  controller.Decide(At(0), 24, 0.4, 10);
  EXPECT_EQ(controller.current()->config.devices(), 24);
  const auto decision = controller.Decide(At(1), 20, 0.4, 10);
  EXPECT_TRUE(decision.changed && decision.forced);
  EXPECT_LE(controller.current()->config.devices(), 20);
  EXPECT_FALSE(controller.Decide(At(2), 8, 0.4, 10).candidate.has_value());
}

}  // namespace
}  // namespace millrace::plan::spot
