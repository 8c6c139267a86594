#include "apps/plan/explain_roles.h"

#include <gtest/gtest.h>

#include "plan/roles/role_plan.h"
#include "plan/roles/testing_roles.h"

namespace millrace::apps {
namespace {

constexpr double kPrefillAlone = 0.95 / (4 * 800 * 1e-5);  // requests per second of a busy node

// n0 prefills, n1 decodes far more; n1's kind is useless for prompts.
class ExplainRolesTest : public ::testing::Test {
 protected:
  ExplainRolesTest() {
    const plan::TestNode prefill{.kind = "p", .max_layers = 4, .step_s = 1};
    const plan::TestNode decode{
        .kind = "d", .max_layers = 4, .prompt_s = 1, .step_s = 1e-5, .token_s = 1e-8};
    inputs_.goodput = plan::RoleTestProblem(4, {prefill, decode}, 1e9, 0);
    inputs_.problem = inputs_.goodput->flow;
    inputs_.cluster.nodes = {{.name = "n0", .device = "p"}, {.name = "n1", .device = "d"}};
    const plan::RoleProblem problem = RolesOf(*inputs_.goodput);
    const plan::RolePlacement apart{{{0, 4}, {0, 4}}, {StageRole::kPrefill, StageRole::kDecode}};
    plan_ = MakeRolePlan(problem, apart, EstimateRoles(problem, apart), 1e9);
  }

  ManualClock clock_;
  PlanInputs inputs_;
  Plan plan_;
};

TEST_F(ExplainRolesTest, NamesTheBottleneckAndWhatOneMoreNodeAdds) {
  const auto found = ExplainRoles(inputs_, plan_, {.clock = &clock_});
  EXPECT_NEAR(found.requests_per_s, kPrefillAlone, 1e-3);
  EXPECT_EQ(found.limit, "prefill of n0");
  ASSERT_EQ(found.roles.size(), 2u);
  EXPECT_EQ(found.roles[0].role, StageRole::kPrefill);
  EXPECT_TRUE(found.roles[0].bottleneck);
  EXPECT_NEAR(found.roles[0].requests_per_s, kPrefillAlone, 1e-3);
  EXPECT_NEAR(found.roles[0].busiest, 0.95, 1e-6);
  EXPECT_FALSE(found.roles[1].bottleneck);
  EXPECT_GT(found.roles[1].requests_per_s, 10 * kPrefillAlone);
  ASSERT_EQ(found.nodes.size(), 2u);
  EXPECT_EQ(found.nodes[0].node, "n0");  // the busier first
  // Another node of n0's kind prefills as much again; one of n1's kind has nothing to do.
  ASSERT_EQ(found.one_more.size(), 2u);
  EXPECT_EQ(found.one_more[0].kind, "p");
  EXPECT_EQ(found.one_more[0].roles, "prefill");
  EXPECT_NEAR(found.one_more[0].added, kPrefillAlone, 1e-3);
  EXPECT_EQ(found.one_more[1].kind, "d");
  EXPECT_LT(found.one_more[1].added, 0.01 * kPrefillAlone);
  const std::string text = RoleExplanationText(found, plan_, inputs_.cluster);
  EXPECT_NE(
      text.find("requests/s without limits on latency by the estimate, bound by prefill of n0\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("95 % busy  (bottleneck)\n"), std::string::npos) << text;
  EXPECT_NE(text.find("29.7 requests/s  p, for prefill\n"), std::string::npos) << text;
}

TEST_F(ExplainRolesTest, LimitsBindAndAreNamed) {
  inputs_.limits.ttft_s = 0.1;  // a prompt of 800 tokens takes 0.032 s alone
  const auto found = ExplainRoles(inputs_, plan_, {.clock = &clock_});
  EXPECT_LT(found.requests_per_s, 0.8 * kPrefillAlone);
  const std::string text = RoleExplanationText(found, plan_, inputs_.cluster);
  EXPECT_NE(text.find("requests/s within the limits by the estimate, bound by ttft\n"),
            std::string::npos)
      << text;
}

TEST_F(ExplainRolesTest, AStageOfBothRolesIsOneOfTheRoles) {
  const plan::TestNode node{.kind = "p", .max_layers = 4};
  inputs_.goodput = plan::RoleTestProblem(4, {node, node, node}, 1e9, 0);
  const plan::RoleProblem problem = RolesOf(*inputs_.goodput);
  const plan::RolePlacement placement{{{0, 4}, {0, 4}, {0, 4}},
                                      {StageRole::kPrefill, StageRole::kDecode, StageRole::kBoth}};
  const Plan plan = MakeRolePlan(problem, placement, EstimateRoles(problem, placement), 1e9);
  const auto found = ExplainRoles(inputs_, plan, {.clock = &clock_});
  ASSERT_EQ(found.roles.size(), 3u);
  const RoleExplanation::Role& both = found.roles[2];
  EXPECT_EQ(both.role, StageRole::kBoth);
  EXPECT_FALSE(both.bottleneck);  // its requests do not pass the others
  // Its own 32 outputs per step: as testing_roles.h has the rate.
  EXPECT_NEAR(both.requests_per_s, 1 / (4 * (800 * 1e-5 + 100 * (2e-3 / 32 + 1e-5))), 1e-3);
  const double pair = std::min(found.roles[0].requests_per_s, found.roles[1].requests_per_s);
  EXPECT_NEAR(found.requests_per_s, pair + both.requests_per_s, 0.05 * pair);
}

// n0 with two devices, one for each role: as if each were a node of half its speed.
TEST_F(ExplainRolesTest, SeveralStagesOfANodeEachHaveTheirDevices) {
  const plan::TestNode node{.kind = "p", .max_layers = 4};
  inputs_.goodput = plan::RoleTestProblem(4, {node}, 1e9, 2);
  plan::FlowNode& flow = inputs_.goodput->flow.nodes[0];
  flow.devices = 2;
  flow.room_layers = 8;
  plan_ = {.model = "m", .cluster = "test", .num_layers = 4, .partial_inference = false};
  plan_.stages = {{.nodes = {0}, .layers = {0, 4}, .role = StageRole::kPrefill},
                  {.nodes = {0}, .layers = {0, 4}, .role = StageRole::kDecode}};
  const auto found = ExplainRoles(inputs_, plan_, {.clock = &clock_});
  ASSERT_EQ(found.roles.size(), 2u);
  const double prefill = 0.95 / (2 * 4 * 800 * 1e-5);
  EXPECT_EQ(found.roles[0].nodes, 1);
  EXPECT_NEAR(found.roles[0].requests_per_s, prefill, 1e-3);
  EXPECT_TRUE(found.roles[0].bottleneck);
  EXPECT_NEAR(found.roles[0].busiest, 0.95, 1e-6);
  EXPECT_NEAR(found.requests_per_s, prefill, 1e-3);
  EXPECT_EQ(found.limit, "prefill of n0 (stage 0)");
  ASSERT_EQ(found.nodes.size(), 1u);
  EXPECT_EQ(found.nodes[0].node, "n0");
  EXPECT_EQ(found.nodes[0].roles, "prefill + decode");
  EXPECT_NEAR(found.nodes[0].busy, (0.95 + found.roles[1].busiest) / 2, 1e-6);
  // Another such node with both stages does as much again; alone for prompts it does twice as much
  // beside what the plan has, and the outputs then bind.
  ASSERT_EQ(found.one_more.size(), 1u);
  EXPECT_GE(found.one_more[0].added, 0.99 * prefill);
  const std::string text = RoleExplanationText(found, plan_, inputs_.cluster);
  EXPECT_NE(text.find(" %  prefill + decode n0\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace millrace::apps
