// Hysteresis: few changes under a load that swings.
#include "experiments/lib/spotserve/regret_rule.h"

#include <gtest/gtest.h>

#include "base/testing/test_time.h"
#include "plan/spot/testing.h"

namespace millrace::experiments::spotserve {
namespace {

// A load that crosses a threshold of the optimizer once a second. The published rule changes with
// every sample, the controller at most once.
TEST(RegretRuleTest, OscillationMakesAtMostOneReconfiguration) {
  const SearchSpace space{.devices_min = 12, .devices_per_instance = 4};
  const Profile gpt = plan::spot::PublishedProfile("h6144");
  int thresholds = 0;
  for (const int devices : {24, 32, 40, 48}) {
    for (double load = 0.1; load < 1.2; load += 0.02) {
      const auto low = OptimizeAsPublished(gpt, space, devices, load);
      const auto high = OptimizeAsPublished(gpt, space, devices, load + 0.02);
      if (low->config == high->config) continue;
      ++thresholds;
      RegretRule controller(gpt, space, {});
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

TEST(RegretRuleTest, AlternatingByAnyAmountChangesRarely) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const Profile profile = plan::spot::RandomProfile(rng);
    RegretRule controller(profile, {.devices_min = 1}, {});
    const double a = 5 * rng.Uniform(), b = 5 * rng.Uniform();
    controller.Decide(At(0), 16, a, 10);
    int changes = 0;
    for (int second = 1; second <= 60; ++second) {
      changes += controller.Decide(At(second), 16, second % 2 ? b : a, 10).changed;
    }
    EXPECT_LE(changes, 1) << seed;
  }
}

TEST(RegretRuleTest, FollowsALoadThatStays) {
  const SearchSpace space{.devices_min = 12, .devices_per_instance = 4};
  RegretRule controller(plan::spot::PublishedProfile("h6144"), space, {});
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

TEST(RegretRuleTest, LossForcesAChangeAtOnce) {
  const SearchSpace space{.devices_min = 12, .devices_per_instance = 4};
  RegretRule controller(plan::spot::PublishedProfile("h6144"), space, {});
  controller.Decide(At(0), 24, 0.4, 10);
  EXPECT_EQ(controller.current()->config.devices(), 24);
  const auto decision = controller.Decide(At(1), 20, 0.4, 10);
  EXPECT_TRUE(decision.changed && decision.forced);
  EXPECT_LE(controller.current()->config.devices(), 20);
  EXPECT_FALSE(controller.Decide(At(2), 8, 0.4, 10).candidate.has_value());
}

}  // namespace
}  // namespace millrace::experiments::spotserve
