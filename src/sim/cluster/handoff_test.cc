// Separate prefill and decode instances in the simulator: times by hand, and no losses with scarce
// memory or machines that come and go.
#include <gtest/gtest.h>

#include "base/testing/test_time.h"
#include "sim/cluster/instances.h"
#include "sim/testing_costs.h"

namespace millrace::sim {
namespace {

const TwoSpeeds kTwoSpeeds;

void Add(InstanceClusterOptions& options, StageRole role, int num_blocks) {
  InstanceOptions instance;
  instance.stages = {&kTwoSpeeds};
  instance.scheduler.num_blocks = num_blocks;
  instance.scheduler.max_model_len = 1024;
  instance.scheduler.prefix_caching = false;
  options.service.instances.push_back(instance);
  options.roles.push_back(role);
}

TEST(HandOff, TimesByHand) {
  InstanceClusterOptions options;
  Add(options, StageRole::kPrefill, 64);
  Add(options, StageRole::kDecode, 64);
  options.kv_transfer = {.kv_bytes_per_token = 1e6, .bytes_per_s = 1e10, .latency_s = 0.005};
  auto cluster = std::move(InstanceCluster::Create(options)).value();
  const auto workload =
      NewSynthetic({.requests = 1, .rate = 1, .prompt = {.a = 100}, .output = {.a = 4}, .seed = 1});
  const ServiceReport report = cluster->Run(*workload);
  const LatencyReport& l = report.latency;
  EXPECT_EQ(l.requests, 1u);
  EXPECT_EQ(l.output_tokens, 4u);
  EXPECT_NEAR(l.ttft.mean(), 0.1, 1e-9);
  // 5 ms until the source is asked, 100 tokens of 1 MB at 10 GB/s, 5 ms, then a step of 10 ms.
  EXPECT_NEAR(l.max_gap.mean(), 0.005 + 0.01 + 0.005 + 0.01, 1e-9);
  EXPECT_NEAR(l.e2e.mean(), 0.1 + 0.02 + 3 * 0.01, 1e-9);
  EXPECT_NEAR(report.kv_transfer.mean(), 0.02, 1e-9);
  EXPECT_NEAR(report.kv_wait.mean(), 0, 1e-9);
}

TEST(HandOff, OneTokenNeedsNoDecode) {
  InstanceClusterOptions options;
  Add(options, StageRole::kPrefill, 64);
  Add(options, StageRole::kDecode, 64);
  auto cluster = std::move(InstanceCluster::Create(options)).value();
  const auto workload =
      NewSynthetic({.requests = 5, .rate = 1, .prompt = {.a = 100}, .output = {.a = 1}});
  const ServiceReport report = cluster->Run(*workload);
  EXPECT_EQ(report.latency.requests, 5u);
  EXPECT_EQ(report.kv_transfer.count(), 0u);
  EXPECT_EQ(cluster->cluster().controller().Stats().blocks_pinned, 0);
}

TEST(HandOff, ScarceMemoryLosesNothing) {
  InstanceClusterOptions options;
  Add(options, StageRole::kPrefill, 80);
  Add(options, StageRole::kPrefill, 80);
  Add(options, StageRole::kDecode, 70);
  options.kv_transfer = {.kv_bytes_per_token = 1e6, .bytes_per_s = 1e9, .latency_s = 0.001};
  auto cluster = std::move(InstanceCluster::Create(options)).value();
  const auto workload =
      NewSynthetic({.requests = 400,
                    .rate = 15,
                    .prompt = {.kind = LengthSpec::Kind::kUniform, .a = 10, .b = 400},
                    .output = {.kind = LengthSpec::Kind::kUniform, .a = 1, .b = 100},
                    .seed = 9});
  const ServiceReport report = cluster->Run(*workload);
  EXPECT_EQ(report.latency.requests, 400u);
  EXPECT_EQ(report.latency.refused, 0u);
  EXPECT_GT(report.kv_wait.max(), 0.5) << "the decode side must be short of memory here";
  const sched::SchedulerStats stats = cluster->cluster().controller().Stats();
  EXPECT_EQ(stats.blocks_free, stats.blocks_total);
  EXPECT_EQ(stats.waiting + stats.running + stats.pulling, 0);
}

TEST(HandOff, RolesMustFit) {
  InstanceClusterOptions prefill, decode, all;
  Add(prefill, StageRole::kPrefill, 64);
  EXPECT_FALSE(InstanceCluster::Create(prefill).ok());
  Add(decode, StageRole::kDecode, 64);
  EXPECT_FALSE(InstanceCluster::Create(decode).ok());
  for (const StageRole role : {StageRole::kPrefill, StageRole::kDecode, StageRole::kBoth}) {
    Add(all, role, 64);
  }
  EXPECT_TRUE(InstanceCluster::Create(all).ok());
}

TEST(HandOff, PromptsThatShareAPrefix) {
  InstanceClusterOptions options;
  Add(options, StageRole::kPrefill, 64);
  Add(options, StageRole::kDecode, 64);
  for (InstanceOptions& instance : options.service.instances) {
    instance.scheduler.prefix_caching = true;
  }
  std::vector<TraceEntry> entries;
  for (int i = 0; i < 10; ++i) {
    entries.push_back({.arrival_s = i * 1.0,
                       .input_tokens = 320,
                       .output_tokens = 4,
                       .prefix = {.ids = {1}, .tokens_per_id = 160}});
  }
  auto cluster = std::move(InstanceCluster::Create(options)).value();
  const auto workload = NewReplay(entries, {});
  const ServiceReport report = cluster->Run(*workload);
  EXPECT_EQ(report.latency.requests, 10u);
  EXPECT_EQ(report.kv_transfer.count(), 10u);
  EXPECT_GE(report.prefix_hit_tokens, 9 * 160u) << "all but the first prompt find it";
}

// The only decode machine is lost and another takes its place; prompts are computed meanwhile.
TEST(HandOff, MachinesComeAndGo) {
  using What = MembershipChange::What;
  InstanceClusterOptions options;
  Add(options, StageRole::kPrefill, 200);
  Add(options, StageRole::kDecode, 200);
  options.kv_transfer = {.kv_bytes_per_token = 1e6, .bytes_per_s = 1e10, .latency_s = 0.001};
  options.membership = {{At(0), 0, 0, What::kCame},   {At(0), 0, 0, What::kReady},
                        {At(0), 1, 1, What::kCame},   {At(0), 1, 1, What::kReady},
                        {At(2.5), 1, 1, What::kLost}, {At(3), 1, 2, What::kCame},
                        {At(4), 1, 2, What::kReady}};
  auto cluster = std::move(InstanceCluster::Create(options)).value();
  const auto workload = NewSynthetic(
      {.requests = 60, .rate = 4, .prompt = {.a = 100}, .output = {.a = 60}, .seed = 2});
  const ServiceReport report = cluster->Run(*workload);
  EXPECT_EQ(report.latency.requests, 60u);
  EXPECT_EQ(report.latency.told_tokens, 60u * 60);
  EXPECT_EQ(report.membership->lost, 1u);
  EXPECT_GT(report.membership->replayed, 0u);
  EXPECT_GT(report.latency.max_gap.max(), 1.5) << "no machine decodes for 1.5 s";
  EXPECT_GT(report.kv_transfer.count(), 40u);
}

}  // namespace
}  // namespace millrace::sim
