// SpotServe's optimizer on machines of the catalogue.
#include "apps/simulate/spot_plans.h"

#include <gtest/gtest.h>

#include <string>

#include "apps/plan/inputs.h"

namespace millrace::apps {
namespace {

// Machines of one device with 16 GB, at this load.
std::vector<plan::PlanCandidate> PlansFor(int machines, const std::string& model, double rate,
                                          const std::string& last_device = "t4",
                                          const LatencyLimits& limits = {}) {
  PlanInputFlags flags;
  flags.live = "test";
  flags.live_text = "name: test\nnodes:\n";
  for (int i = 0; i < machines; ++i) {
    flags.live_text += "  - {name: m" + std::to_string(i) +
                       ", device: " + (i + 1 == machines ? last_device : "t4") +
                       ", memory: 16 GB}\n";
  }
  flags.live_text += "links: {within_region: {bandwidth: 10 Gbit/s, latency: 0.1 ms}}\n";
  flags.model = model;
  sim::WorkloadSpec workload;
  workload.rate = rate;
  workload.prompt.a = 400;
  workload.output.a = 100;
  auto inputs = LoadPlanInputs(flags, std::move(workload));
  EXPECT_TRUE(inputs.ok()) << inputs.status().ToString();
  if (!inputs.ok()) return {};
  return SpotServePlans(*inputs, limits);
}

TEST(SpotPlans, MoreMachinesForMoreLoad) {
  const auto little = PlansFor(6, "llama-1b", 0.2), much = PlansFor(6, "llama-1b", 1e4);
  ASSERT_EQ(little.size(), 1u);
  ASSERT_EQ(much.size(), 1u);
  EXPECT_LT(little[0].plan.stages.size(), 6u) << "the fewest machines that carry it";
  EXPECT_EQ(much[0].plan.stages.size(), 6u) << "all";
  EXPECT_TRUE(much[0].method.starts_with("SpotServe, (D, P, M, B) = (")) << much[0].method;
}

TEST(SpotPlans, AModelThatFitsNoMachineIsDivided) {
  const auto plans = PlansFor(6, "llama-13b", 0.1);
  ASSERT_EQ(plans.size(), 1u);
  int layers = 0;
  for (const StagePlan& stage : plans[0].plan.stages) {
    EXPECT_LT(stage.layers.size(), 40);
    layers += stage.layers.size();
  }
  EXPECT_EQ(layers % 40, 0);
}

TEST(SpotPlans, NoneForUnlikeMachines) {
  EXPECT_TRUE(PlansFor(3, "llama-1b", 1, "a100-40gb").empty());
}

TEST(SpotPlans, NoneThatMissesTheLimits) {
  EXPECT_EQ(PlansFor(3, "llama-1b", 1, "t4", {.tpot_s = 1}).size(), 1u);
  EXPECT_TRUE(PlansFor(3, "llama-1b", 1, "t4", {.tpot_s = 1e-6}).empty());
}

}  // namespace
}  // namespace millrace::apps
