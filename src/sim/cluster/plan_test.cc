// Plans of unequal stages, with values by hand: a chain, a shared stage entered in its middle,
// links and trunks, KV that runs out.
#include <gtest/gtest.h>

#include "sim/cluster/cluster_sim.h"
#include "sim/cluster/testing_plans.h"
#include "sim/testing_costs.h"

namespace millrace::sim {
namespace {

ClusterSpec Cluster(int nodes, double bytes_per_s, Duration latency) {
  ClusterSpec cluster;
  for (int i = 0; i < nodes; ++i) cluster.nodes.push_back({.name = "n" + std::to_string(i)});
  for (int i = 0; i <= nodes; ++i) {
    for (int j = 0; j <= nodes; ++j) {
      if (i != j) cluster.links.push_back({i, j, bytes_per_s, latency, std::nullopt});
    }
  }
  return cluster;
}

ClusterSimOptions Options(Plan plan, ClusterSpec cluster, int64_t kv_token_layers) {
  ClusterSimOptions options;
  options.machines.assign(plan.stages.size(), MachineOf(plan, kv_token_layers));
  options.plan = std::move(plan);
  options.cluster = std::move(cluster);
  options.activation_bytes_per_token = 1000;
  options.token_bytes = 0;
  options.controller.kv_high_water = 1;
  options.controller.scheduler.max_model_len = 4096;
  options.controller.scheduler.max_num_seqs = 64;
  options.controller.scheduler.prefix_caching = false;
  return options;
}

TEST(ClusterSimPlan, OneRequestThroughAChain) {
  auto options = Options(Chain(), Cluster(2, 1e6, Duration::Millis(2)), 1 << 20);
  auto sim = std::move(ClusterSim::Create(std::move(options))).value();
  const auto workload =
      NewSynthetic({.requests = 1, .rate = 1, .prompt = {.a = 100}, .output = {.a = 3}});
  const ClusterReport report = sim->Run(*workload);
  // 2 ms to the first stage, 4 layers of 2 ms, 100 kB at 1 MB/s and 2 ms, 6 layers of 2 ms, and the
  // return.
  EXPECT_NEAR(report.latency.ttft.mean(), 0.002 + 0.008 + 0.1 + 0.002 + 0.012 + 0.002, 1e-6);
  // A token: 2 + 4 x 1.01 + (1 + 2) + 6 x 1.01 + 2 ms.
  EXPECT_NEAR(report.latency.tpot.mean(), 0.002 + 0.00404 + 0.003 + 0.00606 + 0.002, 1e-6);
  EXPECT_EQ(report.controller.pipelines_opened, 1u);
  EXPECT_EQ(report.steps, 3u);
}

TEST(ClusterSimPlan, TheProjectionCostsTokensThatLeaveTheModelThere) {
  auto options = Options(Chain(), Cluster(2, 1e12, Duration()), 1 << 20);
  options.machines.assign(2, MachineOf(options.plan, 1 << 20, &kPerLayer));
  auto sim = std::move(ClusterSim::Create(std::move(options))).value();
  const auto workload =
      NewSynthetic({.requests = 1, .rate = 1, .prompt = {.a = 100}, .output = {.a = 3}});
  const ClusterReport report = sim->Run(*workload);
  EXPECT_NEAR(report.latency.ttft.mean(), 10 * 0.002 + 0.002, 1e-6) << "at the second stage only";
  EXPECT_NEAR(report.latency.tpot.mean(), 11 * 0.00101, 1e-6);
}

// Two entry stages, [0, 4) and [0, 6), before one of [4, 10). Activations from the second enter in
// the middle and run only [6, 10) there.
Plan Fork() {
  Plan plan;
  plan.num_layers = 10;
  plan.stages = {{{0}, 1, {0, 4}, StageRole::kBoth},
                 {{1}, 1, {0, 6}, StageRole::kBoth},
                 {{2}, 1, {4, 10}, StageRole::kBoth}};
  plan.edges = {{{}, 0, 50}, {{}, 1, 50}, {0, 2, 50}, {1, 2, 50}, {2, {}, 100}};
  return plan;
}

TEST(ClusterSimPlan, PartsEnterInTheMiddleAndMerge) {
  auto options = Options(Fork(), Cluster(3, 1e12, Duration()), 1 << 20);
  auto sim = std::move(ClusterSim::Create(std::move(options))).value();
  const auto workload =
      NewSynthetic({.requests = 200, .rate = 40, .prompt = {.a = 50}, .output = {.a = 20}});
  const ClusterReport report = sim->Run(*workload);
  EXPECT_EQ(report.latency.requests, 200u);
  EXPECT_EQ(report.latency.output_tokens, 200u * 20);
  EXPECT_EQ(report.controller.pipelines_opened, 2u);
  EXPECT_LT(report.batches, 2 * report.steps) << "the shared stage never merged";
  ExpectNoKvLeft(*sim);
}

TEST(ClusterSimPlan, AMergedBatchCostsEachLayerOnce) {
  // Two requests at the same time, one over each entry. Their decodes meet at the shared stage.
  auto options = Options(Fork(), Cluster(3, 1e12, Duration()), 1 << 20);
  auto sim = std::move(ClusterSim::Create(std::move(options))).value();
  const auto workload = NewSynthetic({.requests = 2,
                                      .rate = std::numeric_limits<double>::infinity(),
                                      .prompt = {.a = 1},
                                      .output = {.a = 1}});
  const ClusterReport report = sim->Run(*workload);
  // Entries take 4 and 6 layers of 1.01 ms. The first request is in layers [4, 10) when the second
  // arrives and waits for it: 4.04 + 6.06, then [6, 10) alone.
  EXPECT_NEAR(report.latency.ttft.min(), 10 * 1.01e-3, 1e-6);
  EXPECT_NEAR(report.latency.ttft.max(), 14 * 1.01e-3, 1e-6);
}

TEST(ClusterSimPlan, WhenKvRunsOutRequestsWait) {
  // Room for two requests of 150 tokens over 10 layers.
  auto options = Options(Chain(), Cluster(2, 1e9, Duration()), 2 * 150 * 6);
  auto sim = std::move(ClusterSim::Create(std::move(options))).value();
  const auto workload =
      NewSynthetic({.requests = 50, .rate = 1000, .prompt = {.a = 100}, .output = {.a = 50}});
  const ClusterReport report = sim->Run(*workload);
  EXPECT_EQ(report.latency.requests, 50u);
  EXPECT_GT(report.latency.ttft.max(), 10 * report.latency.ttft.min());
  ExpectNoKvLeft(*sim);
}

// Two pipelines begin at stage 0, which has room for more than either of the others.
TEST(ClusterSimPlan, PipelinesThatShareAStageUseNoMoreKvThanItHas) {
  Plan plan;
  plan.num_layers = 10;
  plan.stages = {{{0}, 1, {0, 4}, StageRole::kBoth},
                 {{1}, 1, {4, 10}, StageRole::kBoth},
                 {{2}, 1, {4, 10}, StageRole::kBoth}};
  plan.edges = {{{}, 0, 100}, {0, 1, 50}, {0, 2, 50}, {1, {}, 50}, {2, {}, 50}};
  auto sim =
      std::move(ClusterSim::Create(Options(plan, Cluster(3, 1e9, Duration()), 1600 * 6))).value();
  const auto workload =
      NewSynthetic({.requests = 100, .rate = 1000, .prompt = {.a = 100}, .output = {.a = 50}});
  const ClusterReport report = sim->Run(*workload);
  const InstanceUse& use = report.stage_use[0];
  EXPECT_EQ(use.kv_blocks, 1600 * 6 / 4 / 16);
  EXPECT_LE(use.kv_blocks_peak, use.kv_blocks);
  EXPECT_GT(use.kv_blocks_peak, 1600 / 16) << "more than one pipeline alone";
  EXPECT_LE(use.kv_block_seconds, use.kv_blocks * report.simulated_s);
}

TEST(ClusterSimPlan, ATrunkIsShared) {
  const auto seconds = [](bool trunk) {
    ClusterSpec cluster = Cluster(4, 1e6, Duration());
    if (trunk) {
      cluster.trunks = {{"wan", 1e6}};
      for (LinkSpec& link : cluster.links) link.trunk = 0;
    }
    Plan plan = Chain();
    plan.stages.push_back({{2}, 1, {0, 4}, StageRole::kBoth});
    plan.stages.push_back({{3}, 1, {4, 10}, StageRole::kBoth});
    plan.edges.insert(plan.edges.end(), {{{}, 2, 100}, {2, 3, 100}, {3, {}, 100}});
    auto sim = std::move(ClusterSim::Create(Options(plan, cluster, 1 << 20))).value();
    const auto workload = NewSynthetic({.requests = 2,
                                        .rate = std::numeric_limits<double>::infinity(),
                                        .prompt = {.a = 1000},
                                        .output = {.a = 1}});
    return sim->Run(*workload).latency.ttft.max();
  };
  // Each sends 1 MB over its own link at 1 MB/s; over one trunk they take turns.
  EXPECT_NEAR(seconds(true) - seconds(false), 1.0, 0.02);
}

TEST(ClusterSimPlan, APlanThatDoesNotFitIsRefused) {
  ClusterSpec cluster = Cluster(2, 1e9, Duration());
  std::erase_if(cluster.links, [](const LinkSpec& l) { return l.from == 0 && l.to == 1; });
  const auto made = ClusterSim::Create(Options(Chain(), cluster, 1 << 20));
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("n0 to n1"), std::string::npos);
  EXPECT_FALSE(ClusterSim::Create(Options(Chain(), Cluster(1, 1e9, Duration()), 1 << 20)).ok());
}

TEST(ClusterSimPlan, TheSameSeedIsTheSameRun) {
  const auto run = [] {
    auto sim =
        std::move(ClusterSim::Create(Options(Fork(), Cluster(3, 1e8, Duration::Millis(1)), 20'000)))
            .value();
    const auto workload =
        NewSynthetic({.requests = 100,
                      .rate = 30,
                      .prompt = {.kind = LengthSpec::Kind::kUniform, .a = 1, .b = 99},
                      .output = {.kind = LengthSpec::Kind::kUniform, .a = 1, .b = 50},
                      .seed = 3});
    const ClusterReport report = sim->Run(*workload);
    return std::tuple(report.events, report.latency.e2e.sum(), report.latency.itl.sum());
  };
  EXPECT_EQ(run(), run());
}

}  // namespace
}  // namespace millrace::sim
