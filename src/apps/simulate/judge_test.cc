// Plans that the judge rates for a small model on machines of the catalogue.
#include "apps/simulate/judge.h"

#include <gtest/gtest.h>

#include <string>

#include "apps/plan/inputs.h"

namespace millrace::apps {
namespace {

PlanInputs InputsOf(const std::string& server) {
  PlanInputFlags flags;
  flags.live = "test";
  flags.live_text =
      "name: test\n"
      "nodes: [{name: a, device: t4, memory: 16 GB}, {name: b, device: t4, memory: 16 GB}]\n"
      "links: {within_region: {bandwidth: 10 Gbit/s, latency: 0.1 ms}}\n" +
      server;
  flags.model = "llama-1b";
  auto inputs = LoadPlanInputs(flags);
  EXPECT_TRUE(inputs.ok()) << inputs.status().ToString();
  return inputs.ok() ? std::move(*inputs) : PlanInputs();
}

// The model on the first machine alone, or in one half on each of them.
Plan PlanOn(const PlanInputs& inputs, int machines) {
  const int layers = inputs.spec.num_layers;
  Plan plan{.model = "llama-1b", .cluster = "test", .num_layers = layers};
  std::optional<int> from;
  for (int i = 0; i < machines; ++i) {
    plan.stages.push_back(
        {.nodes = {i}, .layers = {layers * i / machines, layers * (i + 1) / machines}});
    plan.edges.push_back({from, i, 100});
    from = i;
  }
  plan.edges.push_back({from, std::nullopt, 100});
  return plan;
}

double Score(const PlanInputs& inputs, const Plan& plan, const LatencyLimits& limits,
             double estimated) {
  plan::JudgeHints hints;
  hints.most_estimated = hints.estimated = estimated;
  const auto score = SimulatedGoodput(inputs, limits, [] { return false; })(plan, hints);
  EXPECT_TRUE(score.ok()) << score.status().ToString();
  return score.ok() ? *score : 0;
}

sim::WorkloadSpec Poisson(double rate) {
  sim::WorkloadSpec workload;
  workload.rate = rate;
  workload.prompt.a = 400;
  workload.output.a = 100;
  return workload;
}

PlanInputs WithWorkload(PlanInputs inputs, sim::WorkloadSpec workload) {
  inputs.requests_per_s = workload.MeanRate();
  inputs.workload = std::move(workload);
  return inputs;
}

TEST(Judge, StepsAreThoseOfTheServer) {
  const LatencyLimits limits{.tpot_s = 0.03};
  const PlanInputs usual = InputsOf("");
  const PlanInputs one = InputsOf("server: {max_num_seqs: 1}\n");
  EXPECT_EQ(usual.engine.max_num_seqs, EngineFlags().max_num_seqs);
  EXPECT_EQ(one.engine.max_num_seqs, 1);
  const double many = Score(usual, PlanOn(usual, 1), {}, 1);
  EXPECT_GT(many, 3 * Score(one, PlanOn(one, 1), {}, 1));
  // Steps with whole prompts delay the outputs beside them.
  const PlanInputs chunks = InputsOf("server: {max_num_seqs: 32, max_num_batched_tokens: 64}\n");
  EXPECT_GT(Score(chunks, PlanOn(chunks, 1), limits, 1),
            1.2 * Score(usual, PlanOn(usual, 1), limits, 1));
}

// Without limits: what is answered under more load than the plan keeps up with.
TEST(Judge, WithoutLimitsTheRateDoesNotDependOnTheRateOfTheWorkload) {
  const PlanInputs base = InputsOf("");
  const PlanInputs idle = WithWorkload(base, Poisson(0.01));
  const PlanInputs busy = WithWorkload(base, Poisson(1000));
  const Plan plan = PlanOn(base, 1);
  const double most = Score(busy, plan, {}, 1);
  EXPECT_NEAR(Score(idle, plan, {}, most / 3) / most, 1, 0.1) << "an estimate that is too low";
  EXPECT_NEAR(Score(idle, plan, {}, most * 2) / most, 1, 0.1) << "or too high";
}

// A stage has as many devices as it is spread over, also where it is alone on its node.
TEST(Judge, AStageHasItsDevicesOfANode) {
  PlanInputs inputs = InputsOf("");
  for (NodeSpec& node : inputs.cluster.nodes) {
    node.device_count = 2;
    node.memory_bytes *= 2;
  }
  Plan plan = PlanOn(inputs, 1);
  const double one = Score(inputs, plan, {}, 10);
  plan.stages[0].tensor_parallel = 2;
  EXPECT_GT(Score(inputs, plan, {}, 10), 1.1 * one);
  plan.stages[0].tensor_parallel = 1;
  plan.stages.push_back(plan.stages[0]);  // the same on the other device
  plan.edges.push_back({std::nullopt, 1, 100});
  plan.edges.push_back({1, std::nullopt, 100});
  EXPECT_NEAR(Score(inputs, plan, {}, 20), 2 * one, 0.2 * one);
}

TEST(Judge, ATraceIsAnsweredAtItsOwnTimes) {
  sim::WorkloadSpec trace;
  trace.arrivals = sim::ArrivalKind::kTrace;
  for (int i = 0; i < 20; ++i) trace.trace.push_back({.arrival_s = i * 1e-3});
  for (sim::TraceEntry& entry : trace.trace) entry.input_tokens = entry.output_tokens = 100;
  const PlanInputs inputs = WithWorkload(InputsOf(""), trace);
  const Plan alone = PlanOn(inputs, 1);
  const double together = Score(inputs, alone, {}, 1);
  // Far apart, each is answered alone: the trace is then run faster until they meet.
  for (sim::TraceEntry& entry : trace.trace) entry.arrival_s *= 1e3;
  const PlanInputs slow = WithWorkload(InputsOf(""), trace);
  EXPECT_GT(Score(slow, alone, {}, 0.1), 1.2);
  EXPECT_LT(Score(slow, alone, {}, 0.1), together);
}

TEST(Judge, ABurstIsMeasuredUntilItsLastAnswer) {
  sim::WorkloadSpec burst = Poisson(1);
  burst.arrivals = sim::ArrivalKind::kAllAtOnce;
  burst.rate.reset();
  const PlanInputs inputs = WithWorkload(InputsOf(""), burst);
  const double at_once = Score(inputs, PlanOn(inputs, 1), {}, 1);
  const PlanInputs busy = WithWorkload(InputsOf(""), Poisson(1000));
  EXPECT_NEAR(at_once / Score(busy, PlanOn(busy, 1), {}, 1), 1, 0.2);
}

}  // namespace
}  // namespace millrace::apps
