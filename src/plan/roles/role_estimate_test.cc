#include "plan/roles/role_estimate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plan/flow/check.h"
#include "plan/roles/role_plan.h"
#include "plan/roles/testing_roles.h"

namespace millrace::plan {
namespace {

// One node prefills, one decodes.
GoodputProblem Two(double link_tokens_per_s = 1e9, double kv_layer_tokens = 0) {
  const TestNode node{.kind = "a", .max_layers = 4};
  return RoleTestProblem(4, {node, node}, link_tokens_per_s, kv_layer_tokens);
}
const RolePlacement kApart{{{0, 4}, {0, 4}}, {StageRole::kPrefill, StageRole::kDecode}};

RoleUnit UnitOf(const GoodputProblem& problem) {
  const RoleEstimate estimate = EstimateRoles(RolesOf(problem), kApart);
  EXPECT_EQ(estimate.units.size(), 1u);
  return estimate.units.empty() ? RoleUnit{} : estimate.units.front();
}

TEST(RoleEstimate, PrefillOfMD1) {
  GoodputProblem problem = Two();
  problem.prompt_spread = 1;  // all prompts alike: M/D/1
  const double prompt_s = 4 * 800 * 1e-5;
  problem.ttft_s = 1.5 * prompt_s;
  const RoleUnit unit = UnitOf(problem);
  EXPECT_EQ(unit.estimate.limit, "ttft");
  const double busy = unit.estimate.requests_per_s * prompt_s;
  // Mean wait of M/D/1, plus the links' 800 tokens twice.
  EXPECT_NEAR(unit.estimate.ttft_s, prompt_s + busy * prompt_s / (2 * (1 - busy)) + 2 * 800 / 1e9,
              1e-9);
}

TEST(RoleEstimate, DecodeKeepsLittlesLaw) {
  GoodputProblem problem = Two();
  for (auto& kv : problem.kv_token_layers) kv.assign(4, 40'000);
  const RoleUnit unit = UnitOf(problem);
  EXPECT_EQ(unit.estimate.limit, "KV of n1");
  const double running = unit.estimate.requests_per_s * 100 * unit.estimate.tpot_s;
  // Their KV fills nine tenths of the memory when more come than the mean.
  const double most = running + 1.28 * std::sqrt(running);
  EXPECT_NEAR(most * 850 * 4, 0.9 * 40'000, 400);
}

TEST(RoleEstimate, AStepDecodesNoMoreSequencesThanTheServerAllows) {
  GoodputProblem problem = Two();
  problem.max_sequences = 2;
  const RoleUnit unit = UnitOf(problem);
  EXPECT_EQ(unit.estimate.limit, "the sequences of a step");
  // Both get a token in each step of 4 layers.
  EXPECT_NEAR(unit.estimate.requests_per_s * 100, 2 / (4 * (2e-3 + 2 * 1e-5)), 0.5);
}

TEST(RoleEstimate, TheNetworkBoundsHandOvers) {
  const RoleUnit fast = UnitOf(Two(1e9, 4));
  const RoleUnit slow = UnitOf(Two(50'000, 4));
  EXPECT_EQ(slow.estimate.limit, "the link n0 -> n1");
  // 800 tokens of four layers, each as long as four tokens.
  EXPECT_NEAR(slow.capacity_requests_per_s, 0.95 * 50'000 / (800 * 4 * 4), 1e-6);
  EXPECT_GT(fast.estimate.requests_per_s, slow.estimate.requests_per_s);
  GoodputProblem trunk = Two(1e9, 4);
  trunk.trunks = {{.tokens_per_s = 40'000, .links = {{0, 1}}}};
  EXPECT_EQ(UnitOf(trunk).estimate.limit, "trunk 0");
  GoodputProblem card = Two(1e9, 4);
  card.nic_tokens_per_s = {40'000, 0};
  EXPECT_EQ(UnitOf(card).estimate.limit, "the network card of n0");
}

TEST(RoleEstimate, KvTimeIsPartOfTpot) {
  GoodputProblem problem = Two(1e9, 4);
  const double near = UnitOf(problem).estimate.tpot_s;
  problem.link_latency_s[0 * 3 + 1] = problem.link_latency_s[1 * 3 + 0] = 0.5;
  // One second between the first token and the second, over the 99 gaps of an answer.
  EXPECT_NEAR(UnitOf(problem).estimate.tpot_s - near, 1.0 / 99, 2e-3);
}

// The stage that ends the model computes the head, and a pipeline is as fast as its slowest stage.
TEST(RoleEstimate, TheHeadSlowsTheWholePipeline) {
  const TestNode whole{.kind = "p", .max_layers = 4}, part{.kind = "d", .max_layers = 1};
  GoodputProblem problem = RoleTestProblem(4, {whole, part, part, part, part}, 1e9, 0);
  const RolePlacement deep{{{0, 4}, {0, 1}, {1, 2}, {2, 3}, {3, 4}},
                           {StageRole::kPrefill, StageRole::kDecode, StageRole::kDecode,
                            StageRole::kDecode, StageRole::kDecode}};
  const auto tpot = [&] {
    const RoleEstimate estimate = EstimateRoles(RolesOf(problem), deep);
    EXPECT_EQ(estimate.units.size(), 1u);
    return estimate.units.empty() ? 0 : estimate.units.front().estimate.tpot_s;
  };
  problem.tpot_s = 0.05;
  const double before = tpot();
  problem.rates[4].head_s_per_step = 4e-3;
  EXPECT_GE(tpot(), before);
  EXPECT_GE(tpot(), 4 * (2e-3 + 4e-3));
  problem.rates[4].head_s_per_step = 0.02;
  EXPECT_EQ(EstimateRoles(RolesOf(problem), deep).requests_per_s, 0) << "4 x 22 ms";
}

// A third of the requests would be decoded by a node that always misses the limit.
TEST(RoleEstimate, ASlowRouteIsNotHiddenByTheMean) {
  const TestNode prefill{.kind = "p", .max_layers = 4};
  TestNode fast{.kind = "f", .max_layers = 4, .step_s = 10e-3, .kv_token_layers = 4 * 900};
  TestNode slow = fast;
  slow.kind = "s";
  slow.step_s = 20e-3;
  GoodputProblem problem = RoleTestProblem(4, {prefill, fast, slow}, 1e9, 0);
  problem.tpot_s = 0.06;  // the mean of both is 0.053 s
  RolePlacement placement{{{0, 4}, {0, 4}, {0, 4}},
                          {StageRole::kPrefill, StageRole::kDecode, StageRole::kDecode}};
  EXPECT_EQ(EstimateRoles(RolesOf(problem), placement).requests_per_s, 0);
  placement.layers[2] = {};
  EXPECT_GT(EstimateRoles(RolesOf(problem), placement).requests_per_s, 0);
}

TEST(RoleEstimate, NodesOfBothRolesAddTheirRate) {
  const TestNode node{.kind = "a", .max_layers = 4};
  const GoodputProblem problem = RoleTestProblem(4, {node, node, node}, 1e9, 0);
  const RolePlacement placement{{{0, 4}, {0, 4}, {0, 4}},
                                {StageRole::kPrefill, StageRole::kDecode, StageRole::kBoth}};
  const RoleProblem roles = RolesOf(problem);
  const RoleEstimate estimate = EstimateRoles(roles, placement);
  ASSERT_EQ(estimate.units.size(), 2u);
  EXPECT_NEAR(estimate.requests_per_s,
              estimate.units[0].estimate.requests_per_s + estimate.units[1].estimate.requests_per_s,
              1e-12);
  const Plan plan = MakeRolePlan(roles, placement, estimate, RoleBound(problem));
  const auto violations =
      CheckPlan(problem.flow, plan, {.prompt_tokens = 800, .output_tokens = 100});
  EXPECT_TRUE(violations.empty()) << violations.front();
  EXPECT_EQ(plan.stages.size(), 3u);
}

// The bound holds for plans with and without roles.
TEST(RoleEstimate, NothingExceedsTheBound) {
  int carry = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const GoodputProblem problem = RoleTestProblem(4, RandomTestNodes(seed, 4, 4), 1e9, 0);
    const RoleProblem roles = RolesOf(problem);
    Rng rng(seed);
    RolePlacement placement{Placement(4), std::vector<StageRole>(4)};
    for (size_t i = 0; i < 4; ++i) {
      const int most = problem.flow.nodes[i].max_layers();
      const int k = static_cast<int>(rng.Between(1, most));
      const int begin = static_cast<int>(rng.Between(0, 4 - k));
      placement.layers[i] = {begin, begin + k};
      placement.roles[i] = static_cast<StageRole>(rng.Between(0, 2));
    }
    const double requests = EstimateRoles(roles, placement).requests_per_s;
    carry += requests > 0 ? 1 : 0;
    EXPECT_LE(requests * 900, RoleBound(problem) * (1 + 1e-9)) << seed;
  }
  EXPECT_GE(carry, 20);  // most random placements do not cover the model
}

}  // namespace
}  // namespace millrace::plan
