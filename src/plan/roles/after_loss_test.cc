#include "plan/roles/after_loss.h"

#include <gtest/gtest.h>

#include "plan/check.h"
#include "plan/planner.h"
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

TEST(AfterLoss, PlacementOfIsTheInverseOfMakeRolePlan) {
  const GoodputProblem goodput = TwoPrefillOneDecode();
  const RoleProblem problem = RolesOf(goodput);
  EXPECT_EQ(PlacementOf(problem, PlanOf(problem)), kPlacement);
}

TEST(AfterLoss, HalfOfThePrefillIsLeft) {
  const GoodputProblem goodput = TwoPrefillOneDecode();
  const RoleProblem problem = RolesOf(goodput);
  const Plan plan = PlanOf(problem);
  EXPECT_NEAR(EstimateRoles(problem, kPlacement).requests_per_s, 2 * kBusy / kPrompt_s, 1e-3);
  const auto left = PlanAfterLoss(problem, plan, 0);
  ASSERT_TRUE(left.has_value());
  EXPECT_NEAR(left->requests_per_s, kBusy / kPrompt_s, 1e-3);
  ASSERT_EQ(left->plan.stages.size(), 2u);
  EXPECT_EQ(left->plan.stages[0].nodes, std::vector<NodeIndex>{1});
  EXPECT_EQ(left->plan.stages[0].role, StageRole::kPrefill);
  EXPECT_EQ(left->plan.stages[1].role, StageRole::kDecode);
  const auto violations =
      CheckPlan(goodput.flow, left->plan, {.prompt_tokens = 800, .output_tokens = 100});
  EXPECT_TRUE(violations.empty()) << violations.front();
}

TEST(AfterLoss, WithoutTheOnlyDecodeNothingIsLeft) {
  const GoodputProblem goodput = TwoPrefillOneDecode();
  const RoleProblem problem = RolesOf(goodput);
  const auto left = PlanAfterLoss(problem, PlanOf(problem), 2);
  ASSERT_TRUE(left.has_value());
  EXPECT_TRUE(left->plan.stages.empty());
  EXPECT_EQ(left->requests_per_s, 0);
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
  const RoleProblem problem = RolesOf(goodput);
  const Placement copies = {{0, 4}, {0, 4}};
  const Plan plan = MakePlan(goodput.flow, copies, SolvePlacementFlow(goodput.flow, copies), 1e6);
  const auto left = PlanAfterLoss(problem, plan, 1);
  ASSERT_TRUE(left.has_value());
  ASSERT_EQ(left->plan.stages.size(), 1u);
  EXPECT_EQ(left->plan.stages[0].nodes, std::vector<NodeIndex>{0});
  // 800 tokens of prompt and 100 of output; 32 outputs share a step.
  const double request_s = 4 * (800 * 1e-5 + 100 * (2e-3 / 32 + 1e-5));
  EXPECT_NEAR(left->requests_per_s, 1 / request_s, 1e-3);
}

TEST(AfterLoss, SeveralStagesOfANodeAreNotSupported) {
  const GoodputProblem goodput = TwoPrefillOneDecode();
  const RoleProblem problem = RolesOf(goodput);
  Plan plan = PlanOf(problem);
  plan.stages[1].nodes = plan.stages[0].nodes;
  EXPECT_FALSE(PlacementOf(problem, plan).has_value());
  EXPECT_FALSE(PlanAfterLoss(problem, plan, 2).has_value());
}

}  // namespace
}  // namespace millrace::plan
