#include "plan/roles/after_loss.h"

#include <gtest/gtest.h>

#include "plan/flow/check.h"
#include "plan/flow/planner.h"
#include "plan/roles/node_parts.h"
#include "plan/roles/role_estimate.h"
#include "plan/roles/role_plan.h"
#include "plan/roles/testing_roles.h"

namespace millrace::plan {
namespace {

constexpr double kPrompt_s = 4 * 800 * 1e-5;  // of a whole prompt on one node
constexpr double kBusy = 0.95;                // at most

// Two nodes prefill, and a third decodes more than both prefill.
GoodputProblem TwoPrefillOneDecode() {
  const TestNode prefill{.kind = "p", .max_layers = 4};
  const TestNode decode{.kind = "d", .max_layers = 4, .step_s = 1e-5, .token_s = 1e-8};
  return RoleTestProblem(4, {prefill, prefill, decode}, 1e9, 0);
}
const RolePlacement kPlacement{{{0, 4}, {0, 4}, {0, 4}},
                               {StageRole::kPrefill, StageRole::kPrefill, StageRole::kDecode}};

Plan PlanOf(const RoleProblem& problem) {
  return MakeRolePlan(problem, kPlacement, EstimateRoles(problem, kPlacement),
                      RoleBound(*problem.goodput));
}

// Of one node.
AfterLoss Without(GoodputProblem problem, const Plan& plan, int node) {
  problem.losable = {node};
  auto losses = PlansAfterLoss(problem, plan);
  EXPECT_EQ(losses.size(), 1u);
  return losses.empty() ? AfterLoss() : std::move(losses.front());
}

TEST(AfterLoss, PlacedIsTheInverseOfMakeRolePlan) {
  const GoodputProblem goodput = TwoPrefillOneDecode();
  EXPECT_EQ(NodeParts(goodput.flow, PlanOf(RolesOf(goodput))).Placed(), kPlacement);
}

TEST(AfterLoss, HalfOfThePrefillIsLeft) {
  const GoodputProblem goodput = TwoPrefillOneDecode();
  const RoleProblem problem = RolesOf(goodput);
  const Plan plan = PlanOf(problem);
  EXPECT_NEAR(EstimateRoles(problem, kPlacement).requests_per_s, 2 * kBusy / kPrompt_s, 1e-3);
  const AfterLoss left = Without(goodput, plan, 0);
  EXPECT_NEAR(left.estimate.requests_per_s, kBusy / kPrompt_s, 1e-3);
  ASSERT_EQ(left.plan.stages.size(), 2u);
  EXPECT_EQ(left.plan.stages[0].nodes, std::vector<NodeIndex>{1});
  EXPECT_EQ(left.plan.stages[0].role, StageRole::kPrefill);
  EXPECT_EQ(left.plan.stages[1].role, StageRole::kDecode);
  const auto violations =
      CheckPlan(goodput.flow, left.plan, {.prompt_tokens = 800, .output_tokens = 100});
  EXPECT_TRUE(violations.empty()) << violations.front();
}

TEST(AfterLoss, WithoutTheOnlyDecodeNothingIsLeft) {
  const GoodputProblem goodput = TwoPrefillOneDecode();
  const RoleProblem problem = RolesOf(goodput);
  const AfterLoss left = Without(goodput, PlanOf(problem), 2);
  EXPECT_TRUE(left.plan.stages.empty());
  EXPECT_EQ(left.estimate.requests_per_s, 0);
  EXPECT_EQ(left.estimate.limit, "nothing left after the loss of n2");
}

// With losable nodes the estimate is that after the worst loss, and it names the node.
TEST(AfterLoss, EstimatesAreThoseAfterTheWorstLoss) {
  GoodputProblem goodput = TwoPrefillOneDecode();
  goodput.losable = {1};
  const RoleEstimate prefill = EstimateRoles(RolesOf(goodput), kPlacement);
  EXPECT_NEAR(prefill.requests_per_s, kBusy / kPrompt_s, 1e-3);
  EXPECT_EQ(prefill.limit, "prefill of n0 after the loss of n1");
  goodput.losable = {1, 2};
  const RoleEstimate decode = EstimateRoles(RolesOf(goodput), kPlacement);
  EXPECT_EQ(decode.requests_per_s, 0);
  EXPECT_EQ(decode.limit, "nothing left after the loss of n2");
}

TEST(AfterLoss, OneCopyOfTwoIsLeftWithoutRoles) {
  const TestNode node{.kind = "a", .max_layers = 4};
  const GoodputProblem goodput = RoleTestProblem(4, {node, node}, 1e9, 0);
  const Placement copies = {{0, 4}, {0, 4}};
  const Plan plan = MakePlan(goodput.flow, copies, SolvePlacementFlow(goodput.flow, copies), 1e6);
  const AfterLoss left = Without(goodput, plan, 1);
  ASSERT_EQ(left.plan.stages.size(), 1u);
  EXPECT_EQ(left.plan.stages[0].nodes, std::vector<NodeIndex>{0});
  // 800 tokens of prompt and 100 of output; 32 outputs share a step.
  const double request_s = 4 * (800 * 1e-5 + 100 * (2e-3 / 32 + 1e-5));
  EXPECT_NEAR(left.estimate.requests_per_s, 1 / request_s, 1e-3);
}

// Two nodes of two devices, each with a prefill and a decode.
Plan TwoInEach(GoodputProblem& goodput) {
  Plan plan{.num_layers = 4, .partial_inference = false};
  for (int node = 0; node < 2; ++node) {
    goodput.flow.nodes[static_cast<size_t>(node)].devices = 2;
    goodput.flow.nodes[static_cast<size_t>(node)].room_layers = 8;
    for (const StageRole role : {StageRole::kPrefill, StageRole::kDecode}) {
      plan.stages.push_back({.nodes = {node}, .layers = {0, 4}, .role = role});
    }
  }
  return plan;
}

TEST(AfterLoss, ANodeIsLostWithAllItsStages) {
  const TestNode node{.kind = "a", .max_layers = 4};
  GoodputProblem goodput = RoleTestProblem(4, {node, node, node}, 1e9, 0);
  const Plan plan = TwoInEach(goodput);
  const AfterLoss left = Without(goodput, plan, 0);
  // The prefill of the other node has one of its two devices.
  EXPECT_NEAR(left.estimate.requests_per_s, kBusy / (2 * kPrompt_s), 1e-3);
  EXPECT_EQ(left.estimate.limit, "prefill of n1 (stage 2) after the loss of n0");
  ASSERT_EQ(left.plan.stages.size(), 2u);
  for (const StagePlan& stage : left.plan.stages) {
    EXPECT_EQ(stage.nodes, std::vector<NodeIndex>{1});
    EXPECT_EQ(stage.tensor_parallel, 1);
  }
  const auto violations =
      CheckPlan(goodput.flow, left.plan, {.prompt_tokens = 800, .output_tokens = 100});
  EXPECT_TRUE(violations.empty()) << violations.front();
  goodput.losable = {2, 1};  // the third is not used
  EXPECT_EQ(PlansAfterLoss(goodput, plan).size(), 1u);
}

// Two pipelines whose halves lie in the same two nodes of two devices: without either there is
// none.
TEST(AfterLoss, PipelinesThroughBothNodesAreLostWithEither) {
  const TestNode node{.kind = "a", .max_layers = 4};
  GoodputProblem goodput = RoleTestProblem(4, {node, node}, 1e9, 0);
  Plan plan = TwoInEach(goodput);
  for (StagePlan& stage : plan.stages) {
    stage.role = StageRole::kBoth;
    stage.layers = stage.nodes.front() == 0 ? LayerRange{0, 2} : LayerRange{2, 4};
  }
  goodput.losable = {0, 1};
  for (const AfterLoss& loss : PlansAfterLoss(goodput, plan)) {
    EXPECT_EQ(loss.estimate.requests_per_s, 0);
    EXPECT_TRUE(loss.plan.stages.empty());
  }
  // With one pipeline in each node, half of them are left.
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    plan.stages[s].layers = s % 2 == 0 ? LayerRange{0, 2} : LayerRange{2, 4};
  }
  const auto losses = PlansAfterLoss(goodput, plan);
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_GT(losses.front().estimate.requests_per_s, 0);
  EXPECT_NEAR(losses[0].estimate.requests_per_s, losses[1].estimate.requests_per_s, 1e-9);
}

}  // namespace
}  // namespace millrace::plan
