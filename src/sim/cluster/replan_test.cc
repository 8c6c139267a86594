// Workers by node, whose plan changes while requests run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/testing/test_time.h"
#include "sim/cluster/cluster_sim.h"
#include "sim/cluster/testing_plans.h"

namespace millrace::sim {
namespace {

constexpr int kLayers = 10, kNodes = 4;

Plan PlanOf(std::vector<StagePlan> stages, std::vector<PlanEdge> edges) {
  Plan plan;
  plan.num_layers = kLayers;
  plan.model = "modelled";
  plan.stages = std::move(stages);
  plan.edges = std::move(edges);
  return plan;
}

// Chains over all nodes.
Plan OneChain() {
  return PlanOf({{{0}, 1, {0, 2}}, {{1}, 1, {2, 5}}, {{2}, 1, {5, 8}}, {{3}, 1, {8, 10}}},
                {{{}, 0, 10}, {0, 1, 10}, {1, 2, 10}, {2, 3, 10}, {3, {}, 10}});
}
Plan TwoChains() {
  return PlanOf({{{0}, 1, {0, 5}}, {{1}, 1, {5, 10}}, {{2}, 1, {0, 5}}, {{3}, 1, {5, 10}}},
                {{{}, 0, 5}, {0, 1, 5}, {1, {}, 5}, {{}, 2, 5}, {2, 3, 5}, {3, {}, 5}});
}
Plan Replicas(int count) {
  Plan plan = PlanOf({}, {});
  for (int i = 0; i < count; ++i) {
    plan.stages.push_back({{i}, 1, {0, kLayers}});
    plan.edges.push_back({{}, i, 5});
    plan.edges.push_back({i, {}, 5});
  }
  return plan;
}
Plan Apart() {
  return PlanOf({{{0}, 1, {0, kLayers}, StageRole::kPrefill},
                 {{2}, 1, {0, 6}, StageRole::kDecode},
                 {{3}, 1, {6, kLayers}, StageRole::kDecode}},
                {{{}, 0, 5, EdgePhase::kPrefill},
                 {0, {}, 5, EdgePhase::kPrefill},
                 {{}, 1, 5, EdgePhase::kDecode},
                 {1, 2, 5, EdgePhase::kDecode},
                 {2, {}, 5, EdgePhase::kDecode}});
}

std::vector<std::string> Names() { return {"n0", "n1", "n2", "n3"}; }

ClusterSimOptions Options(Plan plan) {
  ClusterSimOptions options;
  options.workers = SimWorkers::kByNode;
  options.machines.assign(kNodes, MachineOf(plan, 1 << 20));
  options.plan = std::move(plan);
  for (int i = 0; i < kNodes; ++i)
    options.cluster.nodes.push_back({.name = Names()[static_cast<size_t>(i)]});
  for (int i = 0; i <= kNodes; ++i) {
    for (int j = 0; j <= kNodes; ++j) {
      if (i != j) options.cluster.links.push_back({i, j, 1e9, Duration::Micros(100), std::nullopt});
    }
  }
  options.kv_bytes_per_token_layer = 1000;
  options.controller.scheduler.max_model_len = 4096;
  options.controller.scheduler.max_num_seqs = 64;
  options.controller.scheduler.prefix_caching = false;
  return options;
}

SyntheticOptions Many(double rate, int requests) {
  return {.requests = static_cast<uint64_t>(requests),
          .rate = rate,
          .prompt = {.kind = LengthSpec::Kind::kUniform, .a = 20, .b = 200},
          .output = {.kind = LengthSpec::Kind::kUniform, .a = 1, .b = 60}};
}

TEST(Replan, APlanIsChangedWhileRequestsRunAndNoneIsLost) {
  auto sim = std::move(ClusterSim::Create(Options(OneChain()))).value();
  int64_t epoch = 0;
  bool asked = false;
  sim->on_tick = [&](Time now) {
    if (now < At(5) || std::exchange(asked, true)) return;
    ASSERT_TRUE(sim->ApplyPlan(Replicas(4), Names()).ok());
  };
  const auto workload = NewSynthetic(Many(20, 400));
  const ClusterReport report = sim->Run(*workload);
  epoch = sim->controller().epoch();
  EXPECT_EQ(epoch, 2);
  EXPECT_EQ(report.latency.requests, 400u);
  EXPECT_EQ(report.latency.refused, 0u);
  EXPECT_EQ(report.controller.plans_applied, 2u);
  EXPECT_GT(report.controller.moves, 0u) << "requests that ran moved with their KV";
  ExpectNoKvLeft(*sim);
}

TEST(Replan, AnUnsoundPlanIsRefusedAndTheOldOneServes) {
  auto sim = std::move(ClusterSim::Create(Options(Replicas(2)))).value();
  Status refused;
  sim->on_tick = [&](Time) {
    Plan half = Replicas(1);
    half.stages[0].layers = {0, 5};
    if (refused.ok()) refused = sim->ApplyPlan(std::move(half), Names()).status();
  };
  const auto workload = NewSynthetic(Many(20, 50));
  EXPECT_EQ(sim->Run(*workload).latency.requests, 50u);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused.ToString();
}

// Plans of every kind, one after the other, also before the one before is in force.
TEST(Replan, RandomChangesLoseNoRequest) {
  const std::vector<Plan> plans = {OneChain(), TwoChains(), Replicas(2), Replicas(4), Apart()};
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    Rng rng(seed);
    const auto any = [&] { return plans[static_cast<size_t>(rng.Between(0, 4))]; };
    auto sim = std::move(ClusterSim::Create(Options(any()))).value();
    Time next = At(1);
    sim->on_tick = [&](Time now) {
      if (now < next) return;
      next = now + Duration::Seconds(0.1 * static_cast<double>(rng.Between(1, 40)));
      ASSERT_TRUE(sim->ApplyPlan(any(), Names()).ok());
    };
    const auto workload = NewSynthetic(Many(static_cast<double>(rng.Between(5, 40)), 200));
    const ClusterReport report = sim->Run(*workload);
    EXPECT_EQ(report.latency.requests, 200u) << "seed " << seed;
    EXPECT_EQ(report.latency.refused, 0u) << "seed " << seed;
    EXPECT_GT(report.controller.plans_applied, 2u);
    ExpectNoKvLeft(*sim);
  }
}

}  // namespace
}  // namespace millrace::sim
