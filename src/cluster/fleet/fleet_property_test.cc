// A fleet with providers that do as they like.
#include <gtest/gtest.h>

#include <random>

#include "base/testing/test_scale.h"
#include "cluster/fleet/fleet_testing.h"

namespace millrace::cluster {
namespace {

constexpr int kSeeds = 15, kSeconds = 3000, kSettleSeconds = 3600;
constexpr int kActionsPerMinute = 40;

FleetSpec RandomSpec(std::mt19937& random) {
  const auto from = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  FleetSpec spec;
  const int kinds = from(1, 4);
  for (int k = 0; k < kinds; ++k) {
    const int max = from(1, 8), usd = from(0, 5), rate = from(1, 4);
    const bool spot = from(0, 1) == 1;
    const int min = from(0, 3) == 0 ? 1 : 0;
    const std::string name(1, static_cast<char>('a' + k));
    FleetKind kind = FleetWorld::Kind(name, usd, spot, min, max, rate);
    kind.startup = Duration::Seconds(from(0, 60));
    spec.kinds.push_back(kind);
  }
  spec.cool_down = Duration::Seconds(from(20, 200));
  spec.spares = from(0, 2);
  if (from(0, 1) == 1) spec.budget_usd_per_h = from(20, 40);
  return spec;
}

double Usd(const FleetWorld& world) {
  double usd = 0;
  for (size_t k = 0; k < world.providers.size(); ++k) {
    usd += world.Count(k) * *world.fleet.spec().kinds[k].usd_per_h;
  }
  return usd;
}

class FleetPropertyTest : public testing::TestWithParam<int> {};

// Whatever providers do: never more than the limits and the budget allow, but for what they give
// unasked; nothing is released while its worker serves (FleetWorld checks that); a bounded number
// of actions. Once they work again, the fleet carries the load.
TEST_P(FleetPropertyTest, HoldsItsLimitsAndCarriesTheLoad) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const auto chance = [&](double p) { return std::bernoulli_distribution(p)(random); };
  const FleetSpec spec = RandomSpec(random);
  FleetWorld world(spec);
  int minute_actions = 0;
  bool gave_more = false;  // ever
  const auto check = [&] {
    if (world.second % 60 == 0) {
      const int actions = world.acquires + world.drains + world.releases;
      ASSERT_LE(actions - std::exchange(minute_actions, actions), kActionsPerMinute);
    }
    if (gave_more) return;
    for (size_t k = 0; k < spec.kinds.size(); ++k) {
      ASSERT_LE(world.Count(k), spec.kinds[k].max) << world.second;
    }
    if (spec.budget_usd_per_h) {
      ASSERT_LE(Usd(world), *spec.budget_usd_per_h) << world.second;
    }
  };
  for (int i = 0; i < kSeconds; ++i) {
    if (chance(0.01)) world.requests_per_s = std::uniform_real_distribution<>(0, 12)(random);
    if (chance(0.01)) world.refuses_drains = chance(0.3);
    for (FleetWorld::Provider& provider : world.providers) {
      if (!chance(0.01)) continue;
      provider.fails = chance(0.3);
      provider.gives_none = chance(0.2);
      provider.never_joins = chance(0.2);
      provider.extra = chance(0.1) ? 2 : 0;
      provider.startup_s = std::uniform_int_distribution<>(1, 120)(random);
      gave_more = gave_more || provider.extra > 0;
    }
    if (chance(0.01) && !world.machines.empty()) world.Lose(world.machines.begin()->first);
    world.Step();
    ASSERT_NO_FATAL_FAILURE(check());
  }
  // Everything works again.
  world.requests_per_s = 3;
  world.refuses_drains = false;
  for (auto& provider : world.providers) provider = {.startup_s = 10};
  world.Run(kSettleSeconds);
  MixNeed need{.requests_per_s = world.requests_per_s * spec.headroom,
               .spares = spec.spares,
               .budget_usd_per_h = spec.budget_usd_per_h};
  std::vector<KindStanding> kinds;
  for (size_t k = 0; k < spec.kinds.size(); ++k) {
    const FleetKind& kind = spec.kinds[k];
    ASSERT_LE(world.Count(k), kind.max);
    ASSERT_GE(world.Count(k), kind.min);
    ASSERT_EQ(world.Wanted(k), world.Count(k));
    kinds.push_back({.requests_per_s = kind.requests_per_s,
                     .usd_per_h = kind.usd_per_h,
                     .spot = kind.spot,
                     .min = kind.min,
                     .max = kind.max,
                     .counted = world.Count(k),
                     .committed = world.Count(k)});
  }
  if (CheapestMix(kinds, need).shortage == MixShortage::kNone) {
    EXPECT_TRUE(Carries(kinds, need));
  }
  if (spec.budget_usd_per_h) {
    EXPECT_LE(Usd(world), *spec.budget_usd_per_h);
  }
  // And no more than twice what the need costs, however it came to this.
  need.requests_per_s *= 1.15;
  std::vector<KindStanding> best = kinds;
  const MixAnswer cheapest = CheapestMix(kinds, need);
  for (size_t k = 0; k < kinds.size(); ++k) best[k].counted = cheapest.machines[k];
  EXPECT_LE(CountedUsdPerHour(kinds), 2 * CountedUsdPerHour(best) + 5);
}

INSTANTIATE_TEST_SUITE_P(Seeds, FleetPropertyTest, testing::Range(0, kSeeds* TestScale()));

}  // namespace
}  // namespace millrace::cluster
