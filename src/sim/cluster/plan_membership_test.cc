// Plans whose nodes come and go: times by hand, and no losses under random traces.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/rng.h"
#include "base/testing/test_time.h"
#include "sim/cluster/cluster_sim.h"
#include "sim/cluster/testing_plans.h"
#include "sim/testing_costs.h"

namespace millrace::sim {
namespace {

using What = MembershipChange::What;

ClusterSimOptions Options(Plan plan, int nodes, int64_t kv_token_layers) {
  ClusterSimOptions options;
  options.machines.assign(plan.stages.size(), MachineOf(plan, kv_token_layers));
  options.plan = std::move(plan);
  for (int i = 0; i < nodes; ++i) options.cluster.nodes.push_back({.name = fmt::format("n{}", i)});
  for (int i = 0; i <= nodes; ++i) {
    for (int j = 0; j <= nodes; ++j) {
      if (i != j) options.cluster.links.push_back({i, j, 1e12, Duration(), std::nullopt});
    }
  }
  options.controller.kv_high_water = 1;
  options.controller.deaths_max = 1000;  // losses here are the cloud's
  options.controller.scheduler.max_model_len = 4096;
  options.controller.scheduler.max_num_seqs = 64;
  options.controller.scheduler.prefix_caching = false;
  for (int i = 0; i < nodes; ++i) {
    options.membership.push_back({At(0), i, i, What::kCame});
    options.membership.push_back({At(0), i, i, What::kReady});
  }
  return options;
}

// Two routes, one of which enters the last stage in its middle.
Plan SharedFork() {
  Plan plan;
  plan.num_layers = 10;
  plan.stages = {{{0}, 1, {0, 4}, StageRole::kBoth},
                 {{1}, 1, {0, 6}, StageRole::kBoth},
                 {{2}, 1, {4, 10}, StageRole::kBoth},
                 {{3}, 1, {4, 10}, StageRole::kBoth}};
  plan.edges = {{{}, 0, 50}, {{}, 1, 50}, {0, 2, 25},  {0, 3, 25},
                {1, 2, 25},  {1, 3, 25},  {2, {}, 50}, {3, {}, 50}};
  return plan;
}

SyntheticOptions One(int output) {
  return {.requests = 1,
          .rate = std::numeric_limits<double>::infinity(),
          .prompt = {.a = 100},
          .output = {.a = static_cast<double>(output)}};
}

TEST(PlanMembership, WaitsForTheLostStageAndGoesOnWithItsTokens) {
  ClusterSimOptions options = Options(Chain(), 2, 1 << 20);
  options.membership.push_back({At(0.042), 1, 1, What::kLost});  // while the first stage works
  options.membership.push_back({At(0.05), 1, 2, What::kCame});
  options.membership.push_back({At(0.1), 1, 2, What::kReady});
  auto sim = std::move(ClusterSim::Create(std::move(options))).value();
  const auto workload = NewSynthetic(One(10));
  const ClusterReport report = sim->Run(*workload);
  EXPECT_EQ(report.latency.requests, 1u);
  EXPECT_EQ(report.latency.output_tokens, 10u);
  // The prompt takes 10 x 2 ms, a token 10 x 1.01 ms. The first stage still has its KV of 102
  // tokens and the activations that left it, so only the six lost layers compute them again: 6
  // x 2.02 ms.
  EXPECT_NEAR(report.latency.ttft.mean(), 0.02, 1e-6);
  EXPECT_NEAR(report.latency.max_gap.mean(), 0.12222 - 0.0402, 1e-6);
  EXPECT_NEAR(report.latency.e2e.mean(), 0.12222 + 6 * 0.0101, 1e-6);
  ASSERT_TRUE(report.membership.has_value());
  EXPECT_EQ(report.membership->lost, 1u);
  EXPECT_EQ(report.membership->replayed, 1u);
  EXPECT_EQ(report.membership->replayed_tokens, 102u);
  EXPECT_EQ(report.membership->waited_most, 1u);
  // Two for each of nine tokens and for the prompt, one that did not end, and two for the lost
  // layers.
  EXPECT_EQ(report.batches, 2u * 10 + 1 + 2);
  ExpectNoKvLeft(*sim);
}

TEST(PlanMembership, MovesAtTheNoticeOrFinishes) {
  ClusterSimOptions options = Options(SharedFork(), 4, 1 << 20);
  options.membership.push_back({At(0.045), 2, 2, What::kNotice});
  options.membership.push_back({At(1.2), 2, 2, What::kLost});
  auto sim = std::move(ClusterSim::Create(options)).value();
  auto workload = NewSynthetic(One(50));
  const ClusterReport moved = sim->Run(*workload);
  EXPECT_EQ(moved.membership->moved, 1u);
  EXPECT_EQ(moved.membership->replayed, 0u);
  // Its KV is copied while it runs, so its client notices nothing.
  EXPECT_NEAR(moved.latency.max_gap.mean(), 0.0101, 1e-6);

  // Half a second of it is left, and the machine goes in ten.
  options.membership.back().at = At(10);
  sim = std::move(ClusterSim::Create(options)).value();
  workload = NewSynthetic(One(50));
  EXPECT_EQ(sim->Run(*workload).membership->moved, 0u) << "it ends before";

  options.on_notice = OnNotice::kFinish;
  sim = std::move(ClusterSim::Create(options)).value();
  workload = NewSynthetic(One(50));
  const ClusterReport calm = sim->Run(*workload);
  EXPECT_EQ(calm.membership->moved + calm.membership->replayed, 0u);
  EXPECT_NEAR(calm.latency.max_gap.mean(), 0.0101, 1e-6);

  // Without a notice both last stages are lost, one after the other; at the second loss no request
  // is there.
  options.membership.erase(options.membership.end() - 2, options.membership.end());
  options.membership.push_back({At(0.045), 2, 2, What::kLost});
  options.membership.push_back({At(0.3), 3, 3, What::kLost});
  sim = std::move(ClusterSim::Create(options)).value();
  workload = NewSynthetic(One(50));
  const ClusterReport stuck = sim->Run(*workload);
  EXPECT_EQ(stuck.latency.requests, 0u);
  EXPECT_EQ(stuck.latency.refused, 1u) << "no pipeline opened again";
  EXPECT_GE(stuck.membership->replayed, 1u);
}

std::string RandomTrace(Rng& rng, int nodes) {
  std::string text;
  std::vector<bool> there(static_cast<size_t>(nodes), true);
  for (int i = 0; i < nodes; ++i) text += fmt::format("0,add,m{}\n", i);
  double at_s = 1;
  for (int i = 0; i < 40; ++i) {
    const auto m = static_cast<size_t>(rng.Between(0, nodes - 1));
    there[m] = !there[m];
    text +=
        fmt::format("{},{},m{}\n", static_cast<int>(at_s * 1e3), there[m] ? "add" : "remove", m);
    at_s += rng.Uniform();
  }
  for (size_t m = 0; m < there.size(); ++m) {  // those present at the end serve the rest
    if (!there[m]) text += fmt::format("{},add,m{}\n", static_cast<int>(at_s * 1e3 + 1e3), m);
  }
  return text;
}

TEST(PlanMembership, NothingIsLostUnderRandomTraces) {
  uint64_t replayed = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Rng rng(seed);
    const auto trace = ParseAvailability(RandomTrace(rng, 4));
    ASSERT_TRUE(trace.ok()) << trace.status().ToString();
    ClusterSimOptions options = Options(SharedFork(), 4, 2'000 + rng.Between(0, 20'000));
    options.membership =
        MembershipOf(*trace, {.instances = 4, .notice_s = rng.Uniform(), .load_s = rng.Uniform()});
    const auto serve = [&] {
      auto sim = std::move(ClusterSim::Create(options)).value();
      const auto workload = NewSynthetic(
          {.requests = 300, .rate = 15, .prompt = {.a = 50}, .output = {.a = 20}, .seed = seed});
      ClusterReport report = sim->Run(*workload);
      ExpectNoKvLeft(*sim);
      return report;
    };
    const ClusterReport report = serve();
    EXPECT_EQ(report.latency.requests, 300u) << seed;
    EXPECT_EQ(report.latency.refused, 0u) << seed;
    EXPECT_EQ(report.latency.told_tokens, 300u * 20) << seed;
    for (const double share : report.stage_busy_share) EXPECT_LE(share, 1 + 1e-9) << seed;
    replayed += report.membership->replayed;
    const ClusterReport again = serve();
    EXPECT_EQ(again.events, report.events) << seed;
    EXPECT_EQ(again.latency.e2e.mean(), report.latency.e2e.mean()) << seed;
  }
  EXPECT_GT(replayed, 100u);
}

}  // namespace
}  // namespace millrace::sim
