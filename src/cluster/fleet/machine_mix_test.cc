// How many machines of each kind.
#include "cluster/fleet/machine_mix.h"

#include <gtest/gtest.h>

namespace millrace::cluster {
namespace {

using Machines = std::vector<int>;

KindStanding Standing(double usd, bool spot, int max, double rate = 1, int counted = 0) {
  return {.requests_per_s = rate,
          .usd_per_h = usd,
          .spot = spot,
          .max = max,
          .counted = counted,
          .committed = counted};
}

TEST(MachineMixTest, SpotComesFirstAndOnDemandFillsUp) {
  const std::vector<KindStanding> kinds{Standing(3.912, false, 4), Standing(1.9046, true, 5)};
  EXPECT_EQ(MachinesToAdd(kinds, {.requests_per_s = 3}).machines, (Machines{0, 3}));
  EXPECT_EQ(MachinesToAdd(kinds, {.requests_per_s = 7}).machines, (Machines{2, 5}));
  const MixAnswer all = MachinesToAdd(kinds, {.requests_per_s = 20});
  EXPECT_EQ(all.machines, (Machines{4, 5}));
  EXPECT_EQ(all.shortage, MixShortage::kLimits);
}

// SpotServe, Algorithm 1: on-demand machines are released first.
TEST(MachineMixTest, OnDemandIsReleasedFirst) {
  std::vector<KindStanding> kinds{Standing(3.912, false, 4, 1, 2), Standing(1.9046, true, 5, 1, 3)};
  EXPECT_EQ(KindToRelease(kinds, {.requests_per_s = 5}), std::nullopt);
  EXPECT_EQ(KindToRelease(kinds, {.requests_per_s = 4}), 0U);
  kinds[0].counted = 0;
  EXPECT_EQ(KindToRelease(kinds, {.requests_per_s = 2}), 1U);
  kinds[0].usd_per_h = kinds[1].usd_per_h = 0;
  kinds[0].counted = 1;
  EXPECT_EQ(KindToRelease(kinds, {.requests_per_s = 2}), 0U) << "at the same price as well";
  kinds[0].min = 1;
  EXPECT_EQ(KindToRelease(kinds, {.requests_per_s = 2}), 1U) << "the minimum stays";
}

TEST(MachineMixTest, TheBudgetHoldsWithWhatIsLateOrDrains) {
  std::vector<KindStanding> kinds{Standing(1, true, 9)};
  const MixNeed need{.requests_per_s = 9, .budget_usd_per_h = 5};
  EXPECT_EQ(MachinesToAdd(kinds, need).machines, (Machines{5}));
  EXPECT_EQ(MachinesToAdd(kinds, need).shortage, MixShortage::kBudget);
  kinds[0].committed = 3;
  EXPECT_EQ(MachinesToAdd(kinds, need).machines, (Machines{2}));
}

TEST(MachineMixTest, PricesOfZeroAndUnknownPrices) {
  std::vector<KindStanding> kinds{Standing(1, true, 2), Standing(0, false, 2),
                                  Standing(1, true, 9)};
  kinds[2].usd_per_h.reset();
  EXPECT_EQ(MachinesToAdd(kinds, {.requests_per_s = 5}).machines, (Machines{2, 2, 1}))
      << "what costs nothing first, what is not known last";
  const MixAnswer within = MachinesToAdd(kinds, {.requests_per_s = 5, .budget_usd_per_h = 100});
  EXPECT_EQ(within.machines, (Machines{2, 2, 0}));
  EXPECT_EQ(within.shortage, MixShortage::kPrice);
  kinds[0].counted = kinds[1].counted = kinds[2].counted = 1;
  EXPECT_EQ(DearestKind(kinds), 2U);
}

TEST(MachineMixTest, ALargeMachineOnlyForALargeNeed) {
  const std::vector<KindStanding> kinds{Standing(10, true, 4, 20), Standing(1, true, 9, 1)};
  EXPECT_EQ(MachinesToAdd(kinds, {.requests_per_s = 0.5}).machines, (Machines{0, 1}));
  EXPECT_EQ(MachinesToAdd(kinds, {.requests_per_s = 19}).machines, (Machines{1, 0}));
}

TEST(MachineMixTest, SparesAreMachinesBeyondTheNeed) {
  const std::vector<KindStanding> kinds{Standing(1, true, 9, 2)};
  EXPECT_EQ(MachinesToAdd(kinds, {.requests_per_s = 4, .spares = 1}).machines, (Machines{3}));
  EXPECT_EQ(KindToRelease({Standing(1, true, 9, 2, 3)}, {.requests_per_s = 4, .spares = 1}),
            std::nullopt);
}

TEST(MachineMixTest, WhatCannotBeHadIsKeptButNotAskedFor) {
  std::vector<KindStanding> kinds{Standing(1, true, 9, 1, 2), Standing(3, false, 9)};
  kinds[0].obtainable = false;
  EXPECT_EQ(MachinesToAdd(kinds, {.requests_per_s = 4}).machines, (Machines{0, 2}));
  EXPECT_EQ(CheapestMix(kinds, {.requests_per_s = 4}).machines, (Machines{2, 2}));
}

}  // namespace
}  // namespace millrace::cluster
