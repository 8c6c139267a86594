#include "plan/flow/planner.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plan/flow/flow_bounds.h"
#include "plan/flow/testing_problems.h"

namespace millrace::plan {
namespace {

FlowProblem Uniform(int nodes, int layers, std::vector<double> rates) {
  FlowProblem problem;
  problem.cluster = "uniform";
  problem.model = "m";
  problem.num_layers = layers;
  for (int i = 0; i < nodes; ++i)
    problem.nodes.push_back({"n" + std::to_string(i), "g", "", rates});
  problem.link_tokens_per_s.assign((nodes + 1) * (nodes + 1), 1e6);
  return problem;
}

TEST(Planner, TooLittleMemoryNamesWhatIsMissing) {
  const auto outcome = PlanByFlow(Uniform(2, 8, {9, 4, 2}), {});
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.status().message().find("add memory for 2 more"), std::string::npos);
}

TEST(Planner, RefusesAbsurdNumbers) {
  FlowProblem problem = Uniform(2, 2, {9});
  problem.link_tokens_per_s[1] = -1;
  EXPECT_EQ(PlanByFlow(problem, {}).status().code(), StatusCode::kInvalidArgument);
  problem = Uniform(2, 2, {0});
  EXPECT_EQ(PlanByFlow(problem, {}).status().code(), StatusCode::kInvalidArgument);
}

TEST(Planner, NodesThatCannotTalkAreAnError) {
  FlowProblem problem = Uniform(2, 2, {9});
  problem.link_tokens_per_s.assign(9, 0);
  const auto outcome = PlanByFlow(problem, {});
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.status().message().find("coordinator"), std::string::npos);
}

TEST(Planner, NeverWorseThanTheBestSingleMachine) {
  FlowProblem problem = Uniform(3, 2, {9, 8});
  for (double& link : problem.link_tokens_per_s) link = 10;
  problem.link_tokens_per_s[0 * 4 + 1] = problem.link_tokens_per_s[1 * 4 + 0] = 0.5;
  const auto outcome = PlanByFlow(problem, {.iterations = 10'000});
  ASSERT_TRUE(outcome.ok());
  EXPECT_GE(outcome->flow.tokens_per_s, BestSingleNode(problem)->tokens_per_s);
}

// The maximum number of layers on many nodes: constructions and search stay within memory.
TEST(Planner, LargestClusterIsPlanned) {
  std::vector<double> rates;
  for (int k = 1; k <= 1024; ++k) rates.push_back(1e5 / (k * std::sqrt(k)));
  const auto outcome = PlanByFlow(Uniform(200, 1024, rates), {.iterations = 100});
  ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
  EXPECT_GT(outcome->flow.tokens_per_s, 0);
}

TEST(Bounds, OrderAndTolerance) {
  for (int round = 0; round < 500; ++round) {
    const FlowProblem problem = RandomProblem(round, {.nodes_max = 12, .layers_max = 30});
    if (!ValidateFlowProblem(problem).ok()) continue;
    const double self = SelfConsistentBound(problem);
    ASSERT_LE(self, LayerSumBound(problem) * (1 + 1e-12));
    ASSERT_LE(ChainThreshold(problem), self * (1 + 1e-6)) << round;
  }
}

}  // namespace
}  // namespace millrace::plan
