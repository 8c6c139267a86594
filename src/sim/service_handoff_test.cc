// Separate prefill and decode instances in the simulator: times by hand, and no losses with scarce
// memory.
#include <gtest/gtest.h>

#include "sim/service.h"
#include "sim/testing_costs.h"

namespace millrace::sim {
namespace {

InstanceOptions Of(StageRole role, const cost::StepCost& cost, int num_blocks) {
  InstanceOptions instance;
  instance.role = role;
  instance.stages = {&cost};
  instance.scheduler.num_blocks = num_blocks;
  instance.scheduler.max_model_len = 1024;
  instance.scheduler.prefix_caching = false;
  return instance;
}

TEST(ServiceHandOff, TimesByHand) {
  const TwoSpeeds cost;
  ServiceOptions options;
  options.instances = {Of(StageRole::kPrefill, cost, 64), Of(StageRole::kDecode, cost, 64)};
  options.kv_transfer = {.kv_bytes_per_token = 1e6, .bytes_per_s = 1e10, .latency_s = 0.005};
  auto service = std::move(Service::Create(options)).value();
  const auto workload =
      NewSynthetic({.requests = 1, .rate = 1, .prompt = {.a = 100}, .output = {.a = 4}, .seed = 1});
  const ServiceReport report = service->Run(*workload);
  const LatencyReport& l = report.latency;
  EXPECT_EQ(l.requests, 1u);
  EXPECT_EQ(l.output_tokens, 4u);
  EXPECT_NEAR(l.ttft.mean(), 0.1, 1e-9);
  // 100 tokens of 1 MB at 10 GB/s plus 5 ms latency, then a step of 10 ms.
  EXPECT_NEAR(l.max_gap.mean(), 0.01 + 0.005 + 0.01, 1e-9);
  EXPECT_NEAR(l.e2e.mean(), 0.1 + 0.015 + 3 * 0.01, 1e-9);
  EXPECT_NEAR(report.kv_transfer.mean(), 0.015, 1e-9);
  EXPECT_NEAR(report.kv_wait.mean(), 0, 1e-9);
}

TEST(ServiceHandOff, OneTokenNeedsNoDecode) {
  const TwoSpeeds cost;
  ServiceOptions options;
  options.instances = {Of(StageRole::kPrefill, cost, 64), Of(StageRole::kDecode, cost, 64)};
  auto service = std::move(Service::Create(options)).value();
  const auto workload =
      NewSynthetic({.requests = 5, .rate = 1, .prompt = {.a = 100}, .output = {.a = 1}});
  const ServiceReport report = service->Run(*workload);
  EXPECT_EQ(report.latency.requests, 5u);
  EXPECT_EQ(report.kv_transfer.count(), 0u);
  EXPECT_EQ(report.stats[0].blocks_pinned, 0);
}

TEST(ServiceHandOff, ScarceMemoryLosesNothing) {
  const TwoSpeeds cost;
  ServiceOptions options;
  options.instances = {Of(StageRole::kPrefill, cost, 80), Of(StageRole::kPrefill, cost, 80),
                       Of(StageRole::kDecode, cost, 70)};
  options.kv_transfer = {.kv_bytes_per_token = 1e6, .bytes_per_s = 1e9, .latency_s = 0.001};
  auto service = std::move(Service::Create(options)).value();
  const auto workload =
      NewSynthetic({.requests = 400,
                    .rate = 15,
                    .prompt = {.kind = LengthSpec::Kind::kUniform, .a = 10, .b = 400},
                    .output = {.kind = LengthSpec::Kind::kUniform, .a = 1, .b = 100},
                    .seed = 9});
  const ServiceReport report = service->Run(*workload);
  EXPECT_EQ(report.latency.requests, 400u);
  EXPECT_EQ(report.latency.refused, 0u);
  EXPECT_GT(report.kv_wait.max(), 0.5) << "the decode side must be short of memory here";
  for (const auto& stats : report.stats) {
    EXPECT_EQ(stats.blocks_free, stats.blocks_total);
    EXPECT_EQ(stats.waiting + stats.running + stats.pulling, 0);
  }
}

TEST(ServiceHandOff, RolesMustFit) {
  const TwoSpeeds cost;
  EXPECT_FALSE(Service::Create({.instances = {Of(StageRole::kPrefill, cost, 64)}}).ok());
  EXPECT_FALSE(Service::Create({.instances = {Of(StageRole::kDecode, cost, 64)}}).ok());
  EXPECT_FALSE(Service::Create({.instances = {Of(StageRole::kPrefill, cost, 64),
                                              Of(StageRole::kDecode, cost, 64),
                                              Of(StageRole::kBoth, cost, 64)}})
                   .ok());
}

}  // namespace
}  // namespace millrace::sim
