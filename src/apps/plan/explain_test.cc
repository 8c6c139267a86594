#include "apps/plan/explain.h"

#include <gtest/gtest.h>

#include "plan/flow/planner.h"
#include "plan/roles/testing_roles.h"

namespace millrace::apps {
namespace {

// Two nodes of two devices; each holds the model of four layers, even twice.
class ExplainTest : public ::testing::Test {
 protected:
  ExplainTest() {
    const plan::TestNode node{.kind = "a", .max_layers = 4};
    inputs_.problem = plan::RoleTestProblem(4, {node, node}, 1e9, 0).flow;
    inputs_.token_bytes = {2, 4};
    for (plan::FlowNode& each : inputs_.problem.nodes) {
      each.devices = 2;
      each.room_layers = 8;
      inputs_.cluster.nodes.push_back({.name = each.name, .device = "a", .device_count = 2});
    }
    whole_ = inputs_.problem.nodes[0].TokensPerS(4);
    options_.clock = &clock_;
  }

  ManualClock clock_;
  PlanInputs inputs_;
  ExplainOptions options_;
  double whole_ = 0;  // of a node with all its devices
};

TEST_F(ExplainTest, OneStageOnEachNode) {
  const plan::Placement copies = {{0, 4}, {0, 4}};
  const Plan plan =
      MakePlan(inputs_.problem, copies, SolvePlacementFlow(inputs_.problem, copies), 1e9);
  const auto found = ExplainPlan(inputs_, plan, options_);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_NEAR(found->max_flow, 2 * whole_, 1e-6);
  ASSERT_EQ(found->nodes.size(), 2u);
  EXPECT_EQ(found->nodes[0].stages, 1);
  EXPECT_NEAR(found->nodes[0].busy, 1, 1e-9);
  ASSERT_EQ(found->one_more.size(), 1u);
  EXPECT_NEAR(found->one_more[0].added, whole_, 1e-6);
}

// n0: a copy on each device. n1: a copy on one device, and the other is free.
TEST_F(ExplainTest, SeveralStagesOfANodeTogether) {
  Plan plan{.model = "m", .cluster = "test", .num_layers = 4, .partial_inference = false};
  for (const int node : {0, 0, 1}) {
    const auto stage = static_cast<int>(plan.stages.size());
    plan.stages.push_back({.nodes = {node}, .layers = {0, 4}});
    plan.edges.push_back({std::nullopt, stage, whole_ / 4});
    plan.edges.push_back({stage, std::nullopt, whole_ / 4});
    plan.tokens_per_s += whole_ / 4;
  }
  const auto found = ExplainPlan(inputs_, plan, options_);
  ASSERT_TRUE(found.ok()) << found.status().ToString();
  EXPECT_NEAR(found->max_flow, 1.5 * whole_, 1e-6);
  ASSERT_EQ(found->nodes.size(), 2u);
  EXPECT_EQ(found->nodes[0].node, "n0");
  EXPECT_EQ(found->nodes[0].stages, 2);
  EXPECT_NEAR(found->nodes[0].busy, 1, 1e-9);
  EXPECT_NEAR(found->nodes[0].capacity, whole_, 1e-6);
  EXPECT_NEAR(found->nodes[1].busy, 0.5, 1e-9);  // of both devices
  EXPECT_NEAR(found->nodes[1].capacity, whole_ / 2, 1e-6);
  ASSERT_EQ(found->cut.size(), 3u);
  EXPECT_EQ(found->cut[0].what, "compute of n0 (stage 0)");
  // A search with one stage on each of three nodes finds more than the plan with a third node.
  ASSERT_EQ(found->one_more.size(), 1u);
  EXPECT_NEAR(found->one_more[0].tokens_per_s, 3 * whole_, 1e-6);
  const std::string text = ExplanationText(*found, plan);
  EXPECT_NE(text.find("n0, 2 stages  (bottleneck)\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace millrace::apps
