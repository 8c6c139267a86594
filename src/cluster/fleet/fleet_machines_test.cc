// What a fleet knows of its machines, without anybody who decides.
#include "cluster/fleet/fleet_machines.h"

#include <gtest/gtest.h>

#include <utility>

#include "cluster/fleet/fleet_testing.h"

namespace millrace::cluster {
namespace {

class FleetMachinesTest : public ::testing::Test {
 protected:
  static FleetSpec OneKind() {
    FleetSpec spec;
    spec.kinds = {FleetWorld::Kind("spot", 1, true, 0, 6, 2)};
    return spec;
  }
  // A second passes, with these workers.
  void See(const std::vector<FleetMember>& members) {
    clock_.Pass(Time{++second_ * 1'000'000'000});
    machines_.Observe({.members = members});
  }
  // The actions of one kind since the last call.
  template <typename T>
  std::vector<T> Taken() {
    std::vector<FleetAction> actions;
    outbox_.Take(actions);
    std::vector<T> taken;
    for (const FleetAction& action : actions) {
      if (const auto* one = std::get_if<T>(&action)) taken.push_back(*one);
    }
    return taken;
  }

  const FleetSpec spec_ = OneKind();
  int64_t second_ = 0;
  FleetClock clock_;
  FleetOutbox outbox_;
  FleetMachines machines_{spec_, clock_, outbox_};
};

TEST_F(FleetMachinesTest, AnOrderCountsUntilItsMachineServes) {
  EXPECT_FALSE(machines_.Known());
  machines_.Listed(0, std::vector<ListedMachine>());
  EXPECT_TRUE(machines_.Known());
  See({});
  machines_.Ask(0, 1);
  const auto asked = Taken<AcquireMachines>();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(machines_.Count(0).on_order, 1);
  machines_.AcquireEnded(asked[0].order, OkStatus());
  EXPECT_FALSE(machines_.HasOrders());
  machines_.Listed(0, std::vector<ListedMachine>{{"m1", "spot-1"}});
  EXPECT_EQ(machines_.Count(0).on_order, 1);
  EXPECT_EQ(machines_.UsdPerHour(), 1) << "it costs from the moment that it is listed";
  See({{.id = 1, .worker = "spot-1"}});
  EXPECT_EQ(machines_.Count(0).on_order, 0);
  EXPECT_EQ(machines_.Count(0).serving, 1);
  EXPECT_EQ(machines_.NominalRate(), 2);
  EXPECT_EQ(machines_.Standings(0.5)[0].requests_per_s, 1);
}

TEST_F(FleetMachinesTest, AMachineIsReleasedAfterItsWorkerHasLeft) {
  machines_.Listed(0, std::vector<ListedMachine>{{"m1", "spot-1"}});
  See({{.id = 1, .worker = "spot-1"}});
  EXPECT_FALSE(machines_.ReleasesAbsent(0));
  EXPECT_TRUE(machines_.Release(0, FleetCause::kLoad, "it is not needed"));
  EXPECT_EQ(Taken<DrainMachine>().size(), 1u);
  machines_.DrainEnded("spot-1", OkStatus());
  See({{.id = 1, .worker = "spot-1", .draining = true}});
  machines_.SendReleases();
  EXPECT_TRUE(Taken<ReleaseMachine>().empty());
  See({});
  machines_.SendReleases();
  ASSERT_EQ(Taken<ReleaseMachine>().size(), 1u);
  EXPECT_FALSE(machines_.Release(0, FleetCause::kLoad, "")) << "there is no other";
}

TEST_F(FleetMachinesTest, RemembersWhenAMachineWasLost) {
  machines_.Listed(0, std::vector<ListedMachine>{{"m1", "spot-1"}});
  See({{.id = 1, .worker = "spot-1"}});
  EXPECT_FALSE(machines_.last_lost());
  See({});
  EXPECT_EQ(machines_.last_lost(), clock_.now());
}

}  // namespace
}  // namespace millrace::cluster
