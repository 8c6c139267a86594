#include "plan/roles/node_parts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/flow/check.h"
#include "plan/flow/planner.h"
#include "plan/roles/testing_roles.h"

namespace millrace::plan {
namespace {

// One node of two devices and one of one device; all hold the model of four layers.
GoodputProblem TwoAndOne() {
  const TestNode node{.kind = "a", .max_layers = 4, .kv_token_layers = 40'000};
  GoodputProblem problem = RoleTestProblem(4, {node, node}, 1e6, 2);
  problem.flow.nodes[0].devices = 2;
  problem.flow.nodes[0].room_layers = problem.flow.nodes[1].room_layers = 8;
  return problem;
}

StagePlan Stage(int node, LayerRange layers, StageRole role = StageRole::kBoth) {
  return {.nodes = {node}, .layers = layers, .role = role};
}

TEST(NodeParts, ANodeWithOneStageIsOnePart) {
  const GoodputProblem problem = TwoAndOne();
  Plan plan;
  plan.stages = {Stage(1, {0, 4}, StageRole::kPrefill)};
  const NodeParts parts(problem.flow, plan);
  EXPECT_FALSE(parts.divided());
  EXPECT_EQ(parts.count(), 2);
  EXPECT_EQ(parts.Placed(), (RolePlacement{{{}, {0, 4}}, {StageRole::kBoth, StageRole::kPrefill}}));
  const GoodputProblem same = parts.Divide(problem);
  EXPECT_EQ(same.flow.nodes[1].name, "n1");
  EXPECT_EQ(same.flow.nodes[1].tokens_per_s, problem.flow.nodes[1].tokens_per_s);
  EXPECT_EQ(same.flow.link_tokens_per_s, problem.flow.link_tokens_per_s);
}

TEST(NodeParts, StagesOnSomeDevicesHaveTheirShare) {
  const GoodputProblem problem = TwoAndOne();
  Plan plan;
  plan.stages = {Stage(0, {0, 4}, StageRole::kPrefill), Stage(1, {0, 4}, StageRole::kDecode),
                 Stage(0, {0, 4}, StageRole::kDecode)};
  const NodeParts parts(problem.flow, plan);
  ASSERT_EQ(parts.count(), 3);
  EXPECT_TRUE(parts.divided());
  EXPECT_EQ(parts.PartsOf(0), (std::vector<int>{0, 1}));
  EXPECT_EQ(parts.ShareOf(0), 0.5);
  EXPECT_EQ(parts.ShareOf(2), 1);
  const GoodputProblem of = parts.Divide(problem);
  EXPECT_EQ(of.flow.nodes[0].name, "n0 (stage 0)");
  EXPECT_EQ(of.flow.nodes[1].name, "n0 (stage 2)");
  EXPECT_EQ(of.flow.nodes[2].name, "n1");
  EXPECT_DOUBLE_EQ(of.flow.nodes[0].TokensPerS(4), problem.flow.nodes[0].TokensPerS(4) / 2);
  EXPECT_DOUBLE_EQ(of.rates[1].decode_s_per_step, 2 * problem.rates[0].decode_s_per_step);
  EXPECT_EQ(of.kv_token_layers[0][3], 20'000);
  EXPECT_EQ(of.kv_token_layers[2][3], 40'000);
  EXPECT_EQ(of.machine, (std::vector<int>{0, 0, 2}));
  // Between the parts of a node there is no limit that binds.
  EXPECT_EQ(of.flow.Link(0, 2), 1e6);
  EXPECT_EQ(of.flow.Link(0, 1), 1e6) << "as fast as the fastest link";
  EXPECT_EQ(of.link_latency_s[0 * 4 + 1], 0);
  const RolePlacement left = parts.WithoutNode(0);
  EXPECT_EQ(left.layers, (Placement{{}, {}, {0, 4}}));
}

// An estimate of latency takes the times of its devices where they are known.
TEST(NodeParts, KnownTimesOfDevicesComeBeforeTheShare) {
  GoodputProblem problem = TwoAndOne();
  problem.on_devices.resize(2);
  problem.on_devices[0] = {{.tokens_per_s = {9, 8, 7, 6},
                            .rates = {.prefill_s_per_token = 1e-3, .decode_s_per_step = 1},
                            .kv_token_layers = {4, 3, 2, 1}}};
  Plan plan;
  plan.stages = {Stage(0, {0, 4}), Stage(0, {0, 4}), Stage(1, {0, 4})};
  const GoodputProblem of = NodeParts(problem.flow, plan).Divide(problem);
  EXPECT_EQ(of.flow.nodes[1].TokensPerS(4), 6);
  EXPECT_EQ(of.rates[1].decode_s_per_step, 1);
  EXPECT_EQ(of.kv_token_layers[1][3], 1);
  EXPECT_EQ(of.flow.nodes[2].tokens_per_s, problem.flow.nodes[1].tokens_per_s);
}

// Half of its devices, though it is alone there.
TEST(NodeParts, AStageAloneHasItsDevicesOnly) {
  const GoodputProblem problem = TwoAndOne();
  Plan plan;
  plan.stages = {Stage(0, {0, 4})};
  const NodeParts parts(problem.flow, plan);
  EXPECT_TRUE(parts.divided());
  const FlowProblem of = parts.Divide(problem.flow);
  EXPECT_EQ(of.nodes[0].name, "n0");
  EXPECT_DOUBLE_EQ(of.nodes[0].TokensPerS(4), problem.flow.nodes[0].TokensPerS(4) / 2);
}

TEST(NodeParts, StagesOnOneDeviceHaveThePartOfItsTimeThatTheirFlowTakes) {
  const GoodputProblem problem = TwoAndOne();
  Plan plan;
  plan.num_layers = 4;
  plan.stages = {Stage(1, {0, 1}), Stage(1, {3, 4}), Stage(0, {1, 3})};
  plan.edges = {{std::nullopt, 0, 100}, {0, 2, 100}, {2, 1, 100}, {1, std::nullopt, 100}};
  // The same flow through as many layers.
  EXPECT_DOUBLE_EQ(NodeParts(problem.flow, plan).ShareOf(1), 0.5);
  plan.stages[1].layers = {1, 4};
  // A stage of three layers takes three times as long.
  const NodeParts parts(problem.flow, plan);
  EXPECT_NEAR(parts.ShareOf(1), 0.25, 1e-9);
  EXPECT_NEAR(parts.ShareOf(2), 0.75, 1e-9);
  const FlowProblem of = parts.Divide(problem.flow);
  EXPECT_NEAR(of.nodes[1].TokensPerS(1), of.nodes[2].TokensPerS(3), 1e-6);
  plan.edges.clear();  // the layers decide
  EXPECT_DOUBLE_EQ(NodeParts(problem.flow, plan).ShareOf(2), 0.75);
}

TEST(NodeParts, PartsShareTheLinkOfTheirNode) {
  GoodputProblem problem = TwoAndOne();
  problem.flow.nodes[1].devices = 2;
  problem.flow.link_tokens_per_s[0 * 3 + 1] = 60;
  Plan plan;
  plan.num_layers = 4;
  plan.partial_inference = false;
  plan.stages = {Stage(0, {0, 2}), Stage(0, {0, 2}), Stage(1, {2, 4}), Stage(1, {2, 4})};
  const NodeParts parts(problem.flow, plan);
  const FlowProblem of = parts.Divide(problem.flow);
  const Placement layers = parts.Placed().layers;
  ASSERT_GT(SolvePlacementFlow(of, layers).tokens_per_s, 100) << "each for itself";
  const PlacementFlow flow = parts.Flow(of, layers);
  EXPECT_NEAR(flow.tokens_per_s, 60, 1e-6);
  const Plan merged = parts.Merge(MakePlan(of, layers, flow, 1e9));
  EXPECT_EQ(merged.stages.size(), 4u);
  EXPECT_EQ(merged.stages[3].nodes, std::vector<NodeIndex>{1});
  EXPECT_EQ(merged.stages[3].tensor_parallel, 1);
  EXPECT_TRUE(merged.unused.empty());
  const auto violations = CheckPlan(problem.flow, merged);
  EXPECT_TRUE(violations.empty()) << violations.front();
}

// Random plans with up to two stages on a node: the parts carry what the plan carries, never more
// than the checker's own maximum, and what they carry is a sound plan.
TEST(NodeParts, FlowsAreSound) {
  int divided = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    GoodputProblem problem =
        RoleTestProblem(4, RandomTestNodes(seed, 3, 4), 1 + 3000 * rng.Uniform(), 0);
    Plan plan;
    plan.num_layers = 4;
    plan.partial_inference = false;
    for (int node = 0; node < 3; ++node) {
      FlowNode& flow = problem.flow.nodes[static_cast<size_t>(node)];
      flow.devices = static_cast<int>(rng.Between(1, 2));
      flow.room_layers = 8;
      for (int i = 0; i < rng.Between(1, 2); ++i) {
        const auto cut = static_cast<int>(rng.Between(1, 3));
        const LayerRange layers = rng.Between(0, 1) == 0 ? LayerRange{0, cut} : LayerRange{cut, 4};
        if (layers.size() <= flow.max_layers()) plan.stages.push_back(Stage(node, layers));
      }
    }
    const NodeParts parts(problem.flow, plan);
    const FlowProblem of = parts.Divide(problem.flow);
    const Placement layers = parts.Placed().layers;
    const PlacementFlow flow = parts.Flow(of, layers);
    if (flow.tokens_per_s <= kFlowMin) continue;
    divided += parts.divided() ? 1 : 0;
    EXPECT_LE(flow.tokens_per_s, RecomputeFlow(problem.flow, plan) * (1 + 1e-9));
    const Plan merged = parts.Merge(MakePlan(of, layers, flow, 1e9));
    const auto violations = CheckPlan(problem.flow, merged);
    for (const std::string& violation : violations) {
      // Not all of them hold every layer between them.
      EXPECT_TRUE(violation.starts_with("no stage holds layer")) << seed << ": " << violation;
    }
    // The flow that a plan has is one that its parts carry.
    const NodeParts again(problem.flow, merged);
    EXPECT_GE(again.Flow(again.Divide(problem.flow), again.Placed().layers).tokens_per_s,
              flow.tokens_per_s * (1 - 1e-6))
        << seed;
  }
  EXPECT_GT(divided, 50);
}

}  // namespace
}  // namespace millrace::plan
