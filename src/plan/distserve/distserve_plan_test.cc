#include "plan/distserve/distserve_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "plan/flow/check.h"

namespace millrace::plan {
namespace {

// Two nodes of four devices and a model of four layers.
FlowProblem TwoNodes() {
  FlowProblem problem;
  problem.num_layers = 4;
  problem.kv_layer_tokens = 2;
  for (const char* name : {"a", "b"}) {
    FlowNode node{name, "g", "", {4000, 2000, 1400, 1000}};
    node.prefill_tokens_per_s = {8000, 4000, 2800, 2000};
    node.decode_tokens_per_s = {800, 400, 280, 200};
    node.devices = 4;
    node.room_layers = 16;
    problem.nodes.push_back(std::move(node));
  }
  problem.link_tokens_per_s.assign(9, 1e6);
  return problem;
}

Plan MadeOf(const FlowProblem& problem, const DistServeUnit& unit, int units,
            double requests_per_s) {
  const DistServeCandidate candidate{
      .unit = unit, .units = units, .requests_per_s = requests_per_s};
  auto plan = PlanOfUnits(problem, candidate, 30, 10);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  if (!plan.ok()) return {};
  plan->tokens_per_s_bound = 1e9;
  const auto violations = CheckPlan(problem, *plan, {.prompt_tokens = 30, .output_tokens = 10});
  EXPECT_TRUE(violations.empty()) << violations.front();
  return std::move(*plan);
}

int CountRole(const Plan& plan, StageRole role) {
  return static_cast<int>(std::ranges::count(plan.stages, role, &StagePlan::role));
}

TEST(DistServePlan, Algorithm2KeepsKvInsideNodes) {
  // TP2 PP2 prefill and decode in two segments: each node has a stage of both.
  const DistServeUnit unit{.prefill = {2, 2}, .decode = {2, 2}, .segments = 2};
  const Plan plan = MadeOf(TwoNodes(), unit, 1, 5);
  ASSERT_EQ(plan.stages.size(), 4u);
  int moves = 0;
  for (const PlanEdge& edge : plan.edges) {
    if (edge.phase != EdgePhase::kHandOver) continue;
    ++moves;
    const StagePlan& from = plan.stages[static_cast<size_t>(*edge.from)];
    const StagePlan& to = plan.stages[static_cast<size_t>(*edge.to)];
    EXPECT_EQ(from.nodes, to.nodes);
    EXPECT_EQ(from.layers, to.layers);
    EXPECT_EQ(from.tensor_parallel, 2);
    EXPECT_NEAR(edge.tokens_per_s, 5 * 30, 1e-9);
  }
  EXPECT_EQ(moves, 2);
  EXPECT_NEAR(plan.tokens_per_s, 5 * 40, 1e-9);
}

TEST(DistServePlan, Algorithm1SpreadsInstancesOverTheCluster) {
  const DistServeUnit unit{
      .prefill = {2, 1}, .decode = {1, 2}, .prefills = 2, .decodes = 2, .kv_across_nodes = true};
  const Plan plan = MadeOf(TwoNodes(), unit, 1, 4);
  EXPECT_EQ(CountRole(plan, StageRole::kPrefill), 2);
  EXPECT_EQ(CountRole(plan, StageRole::kDecode), 4);
  const auto moves = std::ranges::count(plan.edges, EdgePhase::kHandOver, &PlanEdge::phase);
  EXPECT_EQ(moves, 2 * 4);  // every prefill to both halves of every decode
}

TEST(DistServePlan, ReplicasThatDoBoth) {
  const DistServeUnit unit{.mode = ServingMode::kChunked, .prefill = {2, 2}, .decodes = 0};
  const Plan plan = MadeOf(TwoNodes(), unit, 2, 6);
  EXPECT_EQ(CountRole(plan, StageRole::kBoth), 4);
  EXPECT_TRUE(plan.unused.empty());
  EXPECT_NEAR(plan.tokens_per_s, 6 * 40, 1e-9);
}

TEST(DistServePlan, FlowsShrinkToWhatDevicesCarry) {
  const DistServeUnit unit{.prefill = {2, 1}, .decode = {2, 1}};
  // Half of a node prefills 1000 tokens per second and decodes 100.
  const Plan plan = MadeOf(TwoNodes(), unit, 1, 100);
  EXPECT_NEAR(plan.tokens_per_s, 10 * 40, 1e-6);
  ASSERT_EQ(plan.unused.size(), 1u);
  EXPECT_FALSE(plan.unused.front().reason.empty());
}

TEST(DistServePlan, WhatDoesNotFitIsAnError) {
  const DistServeCandidate wide{.unit = {.prefill = {8, 1}, .decode = {1, 1}}, .units = 1};
  EXPECT_EQ(PlanOfUnits(TwoNodes(), wide, 30, 10).status().code(), StatusCode::kFailedPrecondition);
  const DistServeCandidate many{.unit = {.prefill = {2, 1}, .decode = {2, 1}}, .units = 3};
  EXPECT_FALSE(PlanOfUnits(TwoNodes(), many, 30, 10).ok());
}

}  // namespace
}  // namespace millrace::plan
