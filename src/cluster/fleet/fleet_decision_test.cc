// What comes and goes, given the machines.
#include "cluster/fleet/fleet_decision.h"

#include <gtest/gtest.h>

#include <utility>

#include "cluster/fleet/fleet_testing.h"

namespace millrace::cluster {
namespace {

class FleetDecisionTest : public ::testing::Test {
 protected:
  static FleetSpec OneKind() {
    FleetSpec spec;
    spec.kinds = {FleetWorld::Kind("spot", 1, true, 0, 2, 2)};
    spec.headroom = 1;
    spec.cool_down = Duration::Seconds(5);
    return spec;
  }
  // A second passes with so much load.
  std::vector<FleetAction> Decide(double load_per_s, double factor = 1) {
    clock_.Pass(Time{++second_ * 1'000'000'000});
    machines_.Observe({.members = members_});
    decision_.Decide(load_per_s, factor);
    std::vector<FleetAction> actions;
    outbox_.Take(actions);
    std::erase_if(actions, [](const auto& a) { return std::holds_alternative<FleetLogged>(a); });
    return actions;
  }

  const FleetSpec spec_ = OneKind();
  int64_t second_ = 0;
  std::vector<FleetMember> members_;
  FleetClock clock_;
  FleetOutbox outbox_;
  FleetMachines machines_{spec_, clock_, outbox_};
  FleetDecision decision_{spec_, clock_, machines_, outbox_};
};

TEST_F(FleetDecisionTest, DecidesNothingUntilTheProvidersHaveAnswered) {
  EXPECT_TRUE(Decide(3).empty());
  machines_.Listed(0, std::vector<ListedMachine>());
  const std::vector<FleetAction> actions = Decide(3);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<AcquireMachines>(actions[0]).count, 2);
  EXPECT_TRUE(Decide(3).empty()) << "they are on order";
}

TEST_F(FleetDecisionTest, SlowMachinesAreMoreMachinesUpToTheLimit) {
  machines_.Listed(0, std::vector<ListedMachine>());
  const std::vector<FleetAction> actions = Decide(2, 0.5);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<AcquireMachines>(actions[0]).count, 2);
  EXPECT_EQ(decision_.shortage(), MixShortage::kNone);
  (void)Decide(9, 0.5);
  EXPECT_EQ(decision_.shortage(), MixShortage::kLimits);
}

TEST_F(FleetDecisionTest, WhatIsNotNeededDrainsAfterTheCoolDown) {
  machines_.Listed(0, std::vector<ListedMachine>{{"m1", "spot-1"}});
  members_ = {{.id = 1, .worker = "spot-1"}};
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(Decide(0).empty());
  const std::vector<FleetAction> actions = Decide(0);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<DrainMachine>(actions[0]).worker, "spot-1");
}

}  // namespace
}  // namespace millrace::cluster
