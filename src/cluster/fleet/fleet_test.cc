// Machines that are acquired, drained and released.
#include "cluster/fleet/fleet.h"

#include <gtest/gtest.h>

#include <iterator>
#include <utility>

#include "cluster/fleet/fleet_testing.h"

namespace millrace::cluster {
namespace {

constexpr size_t kSpot = 0, kOnDemand = 1;

FleetSpec TwoKinds() {
  FleetSpec spec;
  spec.kinds = {FleetWorld::Kind("spot", 1, true, 0, 6, 2),
                FleetWorld::Kind("ondemand", 3, false, 1, 4, 2)};
  spec.cool_down = Duration::Seconds(60);
  return spec;
}

TEST(FleetTest, GrowsAtOnceAndShrinksAfterTheCoolDown) {
  FleetWorld world(TwoKinds());
  world.Run(60);
  EXPECT_EQ(world.Count(kOnDemand), 1) << "the minimum";
  world.requests_per_s = 6;  // 7.2 with headroom
  world.Run(60);
  EXPECT_EQ(world.Count(kSpot), 3);
  EXPECT_EQ(world.Count(kOnDemand), 1);
  EXPECT_EQ(world.Wanted(kSpot), 3);
  world.requests_per_s = 1;
  world.Run(10);
  EXPECT_EQ(world.drains, 0) << "the mean load of the cool-down is still high";
  world.Run(400);
  EXPECT_EQ(world.Count(kSpot), 0);
  EXPECT_EQ(world.drains, 3);
  EXPECT_EQ(world.releases, 3);
  EXPECT_LE(world.acquires, 5) << "one for the minimum, and while the measured load rises";
}

TEST(FleetTest, ReleasesAMachineOnlyAfterItsWorkerHasLeft) {
  FleetWorld world(TwoKinds());
  world.requests_per_s = 6;
  world.Run(90);
  world.requests_per_s = 0;
  while (world.drains == 0 && world.second < 1000) world.Step();
  world.Run(4);
  EXPECT_EQ(world.releases, 0) << "it drains for five seconds";
  EXPECT_EQ(world.fleet.Describe(world.now()).kinds[kSpot].draining, 1);
  world.Run(3);
  EXPECT_EQ(world.releases, 1);
}

// A worker that is started again under its name is not the one that was drained.
TEST(FleetTest, AWorkerThatJoinsAgainAfterItsDrainIsReleased) {
  FleetWorld world(TwoKinds());
  world.requests_per_s = 6;
  world.Run(90);
  world.requests_per_s = 0;
  while (world.drains == 0) world.Step();
  auto& member = world.members.at(world.drained.begin()->first);
  member = {.id = ++world.last_member};
  world.Run(2);
  EXPECT_EQ(world.releases, 1);
}

TEST(FleetTest, ADrainThatIsRefusedIsSaidAndTriedAgainLater) {
  FleetWorld world(TwoKinds());
  world.requests_per_s = 6;
  world.Run(90);
  world.refuses_drains = true;
  world.requests_per_s = 0;
  world.Run(200);
  EXPECT_EQ(world.Said("spot-4 stays: the controller cannot drain it: no other worker"), 1);
  EXPECT_EQ(world.Said("drains"), 0);
  EXPECT_LT(world.drains, 10);
  EXPECT_EQ(world.releases, 0);
  world.refuses_drains = false;
  world.Run(600);
  EXPECT_EQ(world.Count(kSpot), 0);
}

// SpotServe, Algorithm 1: both kinds are asked for, the first to come are kept, and on-demand
// machines are released first.
TEST(FleetTest, OnDemandStandsInForSpotMachinesThatAreLate) {
  FleetWorld world(TwoKinds());
  world.providers[kSpot].startup_s = 200;
  world.requests_per_s = 4;  // 4.8 with headroom
  world.Run(29);
  EXPECT_EQ(world.Count(kSpot), 2);
  EXPECT_EQ(world.Count(kOnDemand), 1);
  world.Run(20);
  EXPECT_EQ(world.Count(kOnDemand), 3) << "spot machines were due after 30 s";
  EXPECT_EQ(world.Said("machines late: asks for 1 ondemand"), 2);
  world.providers[kSpot].startup_s = 20;
  world.Run(900);
  EXPECT_EQ(world.Count(kOnDemand), 1);
  EXPECT_EQ(world.Count(kSpot), 2);
  EXPECT_GT(world.Said("cheaper mix: asks for 1 spot"), 0);
}

TEST(FleetTest, ANoticeAsksForAnotherMachineBeforeItsEnd) {
  FleetWorld world(TwoKinds());
  world.requests_per_s = 4;
  world.Run(60);
  ASSERT_EQ(world.Count(kSpot), 2);
  world.members.begin()->second.under_notice = true;
  const std::string going = world.members.begin()->first;
  ASSERT_TRUE(going.starts_with("ondemand") || going.starts_with("spot"));
  const int before = world.acquires;
  world.Run(2);
  EXPECT_EQ(world.acquires, before + 1);
  EXPECT_EQ(world.Said("machines lost: asks") + world.Said("minimum: asks for 1 ondemand: the"), 2);
  world.Lose(going);
  world.Run(60);
  EXPECT_EQ(world.Count(kSpot) + world.Count(kOnDemand), 3);
}

TEST(FleetTest, AProviderThatFailsIsReportedOnceAndOthersTakeItsPlace) {
  FleetWorld world(TwoKinds());
  world.Run(60);
  world.providers[kSpot].fails = true;
  world.requests_per_s = 6;
  world.Run(600);
  EXPECT_EQ(world.Said("spot: no answer"), 1);
  EXPECT_EQ(world.Count(kOnDemand), 4);
  EXPECT_FALSE(world.fleet.Describe(world.now()).kinds[kSpot].trouble.empty());
  world.providers[kSpot].fails = false;
  world.Run(1200);
  EXPECT_EQ(world.Said("spot: the provider does again what it is asked"), 1);
  EXPECT_EQ(world.Count(kOnDemand), 1) << "spot machines are cheaper";
  EXPECT_GT(world.Count(kSpot), 2);
}

TEST(FleetTest, OrdersThatFailAreTriedAgainWithBackOff) {
  FleetWorld world(TwoKinds());
  world.providers[kSpot].gives_none = true;
  world.requests_per_s = 20;  // more than on-demand machines carry
  world.Run(600);
  EXPECT_EQ(world.Said("machines fewer than it was asked for"), 1);
  EXPECT_LT(world.acquires, 14);
  EXPECT_EQ(world.Wanted(kSpot), 6);
}

TEST(FleetTest, WhatIsDeliveredBeyondTheMaximumGoesBack) {
  FleetWorld world(TwoKinds());
  world.providers[kSpot].extra = 9;
  world.requests_per_s = 6;
  world.Run(10);
  EXPECT_GE(world.Count(kSpot), 6);
  world.Run(30);
  EXPECT_LE(world.Count(kSpot), 6);
  EXPECT_GT(world.Said("over-delivered: "), 0);
  world.Run(600);
  EXPECT_LE(world.Count(kSpot), 4) << "what is not needed is drained and released";
}

TEST(FleetTest, MachinesWhoseWorkersDoNotJoinAreGivenBack) {
  FleetWorld world(TwoKinds());
  world.providers[kSpot].never_joins = true;
  world.requests_per_s = 6;
  world.Run(400);
  EXPECT_GT(world.releases, 0);
  EXPECT_EQ(world.Said("has not joined in"), 1);
  EXPECT_EQ(world.Count(kOnDemand), 4);
}

TEST(FleetTest, AnotherPriceIsACauseOfItsOwn) {
  FleetSpec spec = TwoKinds();
  spec.kinds[kOnDemand].min = 0;
  FleetWorld world(spec);
  world.providers[kSpot].price = 1;
  world.requests_per_s = 5.5;
  world.Run(120);
  ASSERT_EQ(world.Count(kSpot), 4);
  ASSERT_EQ(world.Count(kOnDemand), 0);
  world.providers[kSpot].price = 5;
  world.Run(900);
  EXPECT_EQ(world.Said("price changed: spot: the price of a machine was 1 USD/h and is 5 USD/h"),
            1);
  EXPECT_GT(world.Said("price changed: asks for 1 ondemand"), 0);
  EXPECT_EQ(world.Count(kSpot), 0);
  EXPECT_EQ(world.Count(kOnDemand), 4);
  EXPECT_EQ(world.fleet.Describe(world.now()).usd_per_h, 12);
}

TEST(FleetTest, APriceOutsideItsRangeIsSaidAndIgnored) {
  FleetWorld world(TwoKinds());
  world.providers[kSpot].price = -3;
  world.requests_per_s = 4;
  world.Run(120);
  EXPECT_EQ(world.Said("its price is -3 USD/h"), 1);
  EXPECT_EQ(world.fleet.Describe(world.now()).kinds[kSpot].usd_per_h, 1);
}

TEST(FleetTest, TheBudgetHoldsAlsoWhenAPriceRises) {
  FleetSpec spec = TwoKinds();
  spec.budget_usd_per_h = 7;
  FleetWorld world(spec);
  world.providers[kSpot].price = 1;
  world.requests_per_s = 20;
  world.Run(120);
  EXPECT_EQ(world.Count(kOnDemand), 1);
  EXPECT_EQ(world.Count(kSpot), 4);
  EXPECT_EQ(world.Said("another machine would cost more than the budget"), 1);
  world.providers[kSpot].price = 1.9;
  world.Run(120);
  EXPECT_EQ(world.Count(kSpot), 2);
  EXPECT_EQ(world.Said("budget: drains"), 2);
}

TEST(FleetTest, AStatefulSetLosesItsHighestOrdinalFirst) {
  FleetSpec spec = TwoKinds();
  spec.kinds[kSpot].provider = FleetProvider::kKubernetes;
  FleetWorld world(spec);
  world.requests_per_s = 8;
  world.Run(60);
  ASSERT_GE(world.Count(kSpot), 4);
  world.requests_per_s = 1;
  while (world.drains == 0 && world.second < 1000) world.Step();
  EXPECT_EQ(world.drained.begin()->first,
            std::ranges::max_element(world.machines, {}, [](const auto& m) {
              return m.second.kind == kSpot ? m.first : "";
            })->first);
}

TEST(FleetTest, WithoutAProviderTheWantedNumberIsTheAnswer) {
  FleetSpec spec = TwoKinds();
  spec.kinds = {spec.kinds[kSpot]};
  spec.kinds[0].provider = FleetProvider::kNone;
  FleetWorld world(spec);
  world.members["spot-1"] = {.id = 1};
  world.members["spot-2"] = {.id = 2};
  world.Run(20);
  EXPECT_EQ(world.Wanted(0), std::nullopt) << "what is there is not known yet";
  world.requests_per_s = 6;
  world.Run(40);
  EXPECT_EQ(world.Wanted(0), 4);
  world.members["spot-3"] = {.id = 3};
  world.members["spot-4"] = {.id = 4};
  world.Run(100);
  EXPECT_EQ(world.Wanted(0), 4);
  world.requests_per_s = 1;
  for (int i = 0; i < 400; ++i) {
    world.Step();
    if (std::cmp_less(*world.Wanted(0), world.members.size())) {  // an autoscaler reads it
      world.members.erase(std::prev(world.members.end()));
    }
  }
  EXPECT_EQ(world.Wanted(0), 1);
  EXPECT_EQ(world.acquires + world.drains + world.releases, 0);
}

TEST(FleetTest, WhatNobodyProvidesIsNotWantedAgainAndAgain) {
  FleetSpec spec = TwoKinds();
  spec.kinds = {spec.kinds[kSpot]};
  spec.kinds[0].provider = FleetProvider::kNone;
  FleetWorld world(spec);
  world.requests_per_s = 4;  // 4.8 with headroom, and the requests that wait
  world.Run(1000);
  EXPECT_EQ(world.Wanted(0), 3);
}

TEST(FleetTest, AFileThatPromisesTooMuchIsCorrected) {
  FleetWorld world(TwoKinds());
  world.truth = 0.3;
  world.requests_per_s = 2;  // of one machine's promise
  world.Run(900);
  EXPECT_TRUE(world.waiting.empty());
  EXPECT_GE(world.Count(kSpot) + world.Count(kOnDemand), 4);
  const double factor = world.fleet.Describe(world.now()).capacity_factor;
  EXPECT_GT(factor, 0.2);
  EXPECT_LT(factor, 0.7);
}

TEST(FleetTest, AJumpOfTheClockReleasesNothing) {
  FleetWorld world(TwoKinds());
  world.requests_per_s = 6;
  world.Run(90);
  const int machines = world.Count(kSpot);
  world.second += 7200;
  world.Run(30);
  EXPECT_EQ(world.Count(kSpot), machines);
  EXPECT_EQ(world.drains, 0);
}

// The next controller finds the machines that the one before has acquired.
TEST(FleetTest, ARestartAdoptsWhatProvidersList) {
  FleetWorld world(TwoKinds());
  for (int i = 0; i < 3; ++i) world.AddMachine(kSpot);
  world.AddMachine(kOnDemand);
  world.requests_per_s = 6;
  world.Run(60);
  EXPECT_EQ(world.acquires, 0);
  EXPECT_EQ(world.Count(kSpot), 3);
}

TEST(FleetTest, AProviderThatListsEveryMachineForEveryKindIsSaidOnce) {
  FleetWorld world(TwoKinds());
  world.requests_per_s = 6;
  world.Run(62);
  std::vector<ListedMachine> all;
  for (const auto& [id, machine] : world.machines) all.push_back({id, id});
  const int machines = static_cast<int>(world.machines.size());
  for (int i = 0; i < 5; ++i) {
    world.fleet.Listed(kOnDemand, all, world.now());
    world.Step();
  }
  EXPECT_EQ(world.Said("twice, or for two kinds"), 1);
  EXPECT_EQ(world.Count(kSpot) + world.Count(kOnDemand), machines);
}

}  // namespace
}  // namespace millrace::cluster
