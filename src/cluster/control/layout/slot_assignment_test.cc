#include "cluster/control/layout/slot_assignment.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace millrace::cluster {
namespace {

class SlotAssignment : public ::testing::Test {
 protected:
  static constexpr LayerRange kFront{0, 2}, kBack{2, 4};

  void Join(uint64_t worker, std::vector<HeldShard> held = {}, std::string numeric_class = "x") {
    millrace::Join join;
    join.identity.numeric_class = std::move(numeric_class);
    join.name = "w" + std::to_string(worker);
    join.held = std::move(held);
    members_.Add(WorkerId(worker), ConnectionId(worker), std::move(join), {});
  }
  static Layout Halves() { return MakeLayout(EvenPlan("m", 4, 2, 1), {}).value(); }
  static std::string WorkersOf(const Layout& layout) {
    std::string workers;
    for (const LayoutStage& stage : layout.stages) {
      for (const Slot& slot : stage.ranks) {
        workers += slot.worker ? std::to_string(slot.worker->value()) : "-";
      }
    }
    return workers;
  }

  Membership members_{MembershipOptions{}};
};

TEST_F(SlotAssignment, InTheOrderOfJoins) {
  Join(2);
  Join(1);
  Join(3);
  Layout layout = Halves();
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "12") << "ids grow with every join";
  members_.at(WorkerId(3)).draining = true;
  layout.stages[0].ranks[0] = {};
  layout.stages[1].ranks[0] = {};
  members_.at(WorkerId(1)).unusable = "no memory";
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "2-") << "only usable workers, each once";
}

TEST_F(SlotAssignment, NoneForAStageThatIsClosing) {
  Join(1);
  Layout layout = Halves();
  layout.stages[0].closing = true;
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "-1");
}

// A worker comes back while the stand-in in its place has notice, so it stands in elsewhere. When
// its own place is free it must not have both: a pipeline would pass it twice.
TEST_F(SlotAssignment, AWorkerThatStandsInForAnotherDoesNotAlsoGetItsOwnPlace) {
  Join(1);
  Join(3);
  Layout layout = Halves();
  layout.node_names = {"w1", "w2"};
  for (int i = 0; i < 2; ++i) layout.stages[static_cast<size_t>(i)].plan.nodes = {i};
  layout.stages[0].ranks[0].worker = WorkerId(3);
  layout.stages[0].closing = true;
  members_.at(WorkerId(3)).draining = true;
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "31");
  layout.stages[0].ranks[0] = {};
  layout.stages[0].closing = false;
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "-1");
}

// Otherwise the worker that holds the back half would be used up by the front half.
TEST_F(SlotAssignment, WhatWorkersHoldFromEarlierSessionsIsKept) {
  Join(1, {{kBack, {0, 1}}});
  Join(2);
  Layout layout = Halves();
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "21");
}

TEST_F(SlotAssignment, TheOtherLayoutCountsMoreThanEarlierSessions) {
  Join(1, {{kFront, {0, 1}}});
  Join(2);
  Layout other = Halves();
  other.stages[0].ranks[0].worker = WorkerId(2);
  Layout layout = Halves();
  FillSlots(layout, &other, members_);
  EXPECT_EQ(WorkersOf(layout), "21");
  // Some of the layers are better than none.
  other = MakeLayout(EvenPlan("m", 4, 4, 1), {}).value();
  other.stages[3].ranks[0].worker = WorkerId(1);
  layout = Halves();
  members_.at(WorkerId(1)).join.held.clear();
  layout.stages[0].closing = true;
  FillSlots(layout, &other, members_);
  EXPECT_EQ(WorkersOf(layout), "-1");
}

// Slot by slot, the first slot would take a worker that is worth more in the second.
TEST_F(SlotAssignment, AsFewLayersAsPossibleAreLoaded) {
  for (uint64_t worker : {1, 2, 3}) Join(worker);
  Plan plan{.num_layers = 6};
  plan.stages = {{.layers = {0, 3}}, {.layers = {3, 6}}};
  plan.edges = {{std::nullopt, 0, 1}, {0, 1, 1}, {1, std::nullopt, 1}};
  Plan before{.num_layers = 6};
  before.stages = {{.layers = {0, 4}}, {.layers = {4, 6}}};
  before.edges = plan.edges;
  Layout other = MakeLayout(std::move(before), {}).value();
  other.stages[0].ranks[0].worker = WorkerId(3);
  other.stages[1].ranks[0].worker = WorkerId(2);
  Layout layout = MakeLayout(plan, {}).value();
  FillSlots(layout, &other, members_);
  EXPECT_EQ(WorkersOf(layout), "32") << "five layers stay";
  // w3 has 2 of the first three layers and 2 of the others, w2 has 1 of the first three.
  other.stages[0].plan.layers = {1, 5};
  other.stages[1].plan.layers = {0, 1};
  layout = MakeLayout(plan, {}).value();
  FillSlots(layout, &other, members_);
  EXPECT_EQ(WorkersOf(layout), "23") << "three layers stay; slot by slot it would be two";
}

TEST_F(SlotAssignment, ARankOfAnotherDegreeKeepsNothing) {
  for (uint64_t worker : {1, 2, 3}) Join(worker);
  Layout other = MakeLayout(EvenPlan("m", 4, 1, 2), {}).value();
  other.stages[0].ranks[0].worker = WorkerId(2);
  other.stages[0].ranks[1].worker = WorkerId(3);
  Layout layout = MakeLayout(EvenPlan("m", 4, 1, 1), {}).value();
  FillSlots(layout, &other, members_);
  EXPECT_EQ(WorkersOf(layout), "1");
  layout = MakeLayout(EvenPlan("m", 4, 1, 2), {}).value();
  FillSlots(layout, &other, members_);
  EXPECT_EQ(WorkersOf(layout), "23");
}

TEST_F(SlotAssignment, ThePlansWorkerCountsMost) {
  Join(1);
  Join(2);
  Join(3);
  Plan plan = EvenPlan("m", 4, 2, 1);
  plan.stages[0].nodes = {1};
  plan.stages[1].nodes = {0};
  Layout layout = MakeLayout(std::move(plan), {"w2", "w3"}).value();
  Layout other = Halves();
  other.stages[0].ranks[0].worker = WorkerId(1);
  FillSlots(layout, &other, members_);
  EXPECT_EQ(WorkersOf(layout), "32");
}

// Otherwise the first worker to join would take the first slot, whatever the plan says.
TEST_F(SlotAssignment, AWorkerThatThePlanNamesWaitsForNobody) {
  Plan plan = EvenPlan("m", 4, 2, 1);
  plan.stages[0].nodes = {0};
  plan.stages[1].nodes = {1};
  Layout layout = MakeLayout(std::move(plan), {"w7", "w1"}).value();
  Join(1);
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "-1");
  Join(2);
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "21") << "a free worker takes what is left";
}

// A worker of another name stands in for w7 in both of its stages, and is replaced by it.
TEST_F(SlotAssignment, ANodeMayHaveSeveralStages) {
  // Two pipelines in opposite directions.
  Plan plan{.num_layers = 4};
  for (int i = 0; i < 4; ++i) {
    plan.stages.push_back({.nodes = {i == 0 || i == 3 ? 0 : 1}, .layers = i % 2 ? kBack : kFront});
    plan.edges.push_back({i % 2 ? std::optional(i - 1) : std::nullopt, i, 1});
    if (i % 2) plan.edges.push_back({i, std::nullopt, 1});
  }
  Layout layout = MakeLayout(std::move(plan), {"w7", "w1"}).value();
  Join(1);
  Join(2);
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "2112");
  EXPECT_FALSE(NamedWorkerIsReplaced(layout, members_));
  Join(3);
  Join(7);
  EXPECT_TRUE(NamedWorkerIsReplaced(layout, members_));
  layout = MakeLayout(layout.plan, layout.node_names).value();
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "7117") << "and w2 and w3 are spares";
}

TEST_F(SlotAssignment, ANodeHoldsNoLayerTwice) {
  Plan plan = EvenPlan("m", 4, 2, 1);
  plan.stages[0].nodes = plan.stages[1].nodes = {0};
  plan.stages[1].layers = {1, 4};
  EXPECT_EQ(MakeLayout(std::move(plan), {"w1"}).status().message(),
            "stages 0 and 1 hold some of the same layers on one node; make them one stage");
  plan = EvenPlan("m", 4, 2, 1);
  plan.stages[0].nodes = plan.stages[1].nodes = {0};
  EXPECT_EQ(MakeLayout(std::move(plan), {"w1"}).status().message(),
            "stages 0 and 1 are on one node and a route leads through both; make them one stage");
}

// Two pipelines: of both halves, and of the whole model.
Plan ChainAndReplica() {
  Plan plan{.num_layers = 4};
  plan.stages = {{.layers = {0, 4}}, {.layers = {0, 2}}, {.layers = {2, 4}}};
  plan.edges = {{std::nullopt, 0, 1},
                {0, std::nullopt, 1},
                {std::nullopt, 1, 1},
                {1, 2, 1},
                {2, std::nullopt, 1}};
  return plan;
}

TEST_F(SlotAssignment, APipelineHasOneClass) {
  Layout layout = MakeLayout(ChainAndReplica(), {}).value();
  EXPECT_EQ(layout.groups, (std::vector<int>{0, 1, 1}));
  Join(1, {}, "a");
  Join(2, {}, "b");
  Join(3, {}, "b");
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "123") << "the larger pipeline chooses first";
  // Nobody of the class is left, so the slot stays empty although a worker is free.
  layout.stages[2].ranks[0] = {};
  members_.at(WorkerId(3)).draining = true;
  Join(4, {}, "a");
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "12-");
  EXPECT_EQ(WhyNoSlot(layout, members_, members_.at(WorkerId(4))), "")
      << "it is spare as others of its class would be";
}

TEST_F(SlotAssignment, AStageWaitsForAWorkerOfItsClass) {
  Layout layout = MakeLayout(EvenPlan("m", 4, 1, 1), {}).value();
  Join(1, {}, "a");
  Join(2, {}, "b");
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "1");
  EXPECT_EQ(WhyNoSlot(layout, members_, members_.at(WorkerId(2))),
            "it is spare, because its bits differ from those of the other workers (numeric class "
            "'b', theirs is 'a'); give all workers of a pipeline the same --activations and the "
            "same version");
  layout.stages[0].ranks[0] = {};
  members_.Remove(WorkerId(1));
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "-") << "the worker may come back";
  layout.stages[0].last_bits.reset();
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "2");
}

TEST_F(SlotAssignment, APlanMustNotJoinTwoClasses) {
  Plan plan = EvenPlan("m", 4, 2, 1);
  plan.stages[0].nodes = {0};
  plan.stages[1].nodes = {1};
  Layout layout = MakeLayout(plan, {"w1", "w2"}).value();
  Join(1, {}, "a");
  EXPECT_TRUE(CheckBits(layout, members_).ok()) << "the other has not joined";
  Join(2, {}, "b");
  EXPECT_EQ(CheckBits(layout, members_).message(),
            "the plan passes activations or KV between w1 and w2, whose bits differ (numeric "
            "classes 'a' and 'b'); give both the same --activations and the same version of "
            "Millrace and of the C library, or plan a pipeline for each");
  FillSlots(layout, nullptr, members_);
  EXPECT_EQ(WorkersOf(layout), "1-");
  EXPECT_EQ(WhyNoSlot(layout, members_, members_.at(WorkerId(2))).substr(0, 53),
            "it cannot have layers 2-3 as the plan says, because i");
  EXPECT_FALSE(NamedWorkerIsReplaced(layout, members_));
}

TEST_F(SlotAssignment, GroupsFollowEdgesNodesAndKv) {
  using enum StageRole;
  Plan plan{.num_layers = 4};
  // Prefill on node 0; decode in two stages; a machine for both; node 3 has a stage of each.
  plan.stages = {{.nodes = {0}, .layers = {0, 4}, .role = kPrefill},
                 {.nodes = {1}, .layers = {0, 4}, .role = kDecode},
                 {.nodes = {2}, .layers = {0, 4}, .role = kBoth},
                 {.nodes = {3}, .layers = {0, 4}, .role = kDecode}};
  for (const auto& [stage, phase] : {std::pair(0, EdgePhase::kPrefill),
                                     {1, EdgePhase::kDecode},
                                     {2, EdgePhase::kBoth},
                                     {3, EdgePhase::kDecode}}) {
    plan.edges.push_back({std::nullopt, stage, 1, phase});
    plan.edges.push_back({stage, std::nullopt, 1, phase});
  }
  EXPECT_EQ(GroupsOf(plan), (std::vector<int>{0, 0, 2, 0})) << "KV may go from any to any";
  plan.edges.push_back({0, 1, 1, EdgePhase::kHandOver});
  EXPECT_EQ(GroupsOf(plan), (std::vector<int>{0, 0, 2, 3}));
  plan.stages[3].nodes = {2};
  EXPECT_EQ(GroupsOf(plan), (std::vector<int>{0, 0, 2, 2}));
}

}  // namespace
}  // namespace millrace::cluster
