#include "plan/cheapest.h"

#include <gtest/gtest.h>

namespace millrace::plan {
namespace {

// All-to-all linked nodes with these rates; each holds the whole one-layer model.
FlowProblem Problem(const std::vector<double>& rates) {
  FlowProblem problem;
  problem.cluster = "shop";
  problem.model = "toy";
  problem.num_layers = 1;
  for (size_t i = 0; i < rates.size(); ++i) {
    problem.nodes.push_back({"n" + std::to_string(i), "gpu", "", {rates[i]}});
  }
  const size_t side = rates.size() + 1;
  problem.link_tokens_per_s.assign(side * side, 1e6);
  for (size_t i = 0; i < side; ++i) problem.link_tokens_per_s[i * side + i] = 0;
  return problem;
}

Result<PlanOutcome> Cheapest(const FlowProblem& problem, const std::vector<double>& prices,
                             double rate) {
  PlanOptions options;
  options.iterations = 2000;
  return CheapestPlan(problem, prices, rate, options, PlanByFlow);
}

TEST(CheapestTest, LeavesOutTheMostExpensiveThatIsNotNeeded) {
  const auto outcome = Cheapest(Problem({100, 100, 100, 100}), {5, 1, 2, 9}, 200);
  ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
  ASSERT_EQ(outcome->plan.stages.size(), 2u);
  EXPECT_EQ(outcome->plan.stages[0].nodes[0], 1);
  EXPECT_EQ(outcome->plan.stages[1].nodes[0], 2);
  EXPECT_DOUBLE_EQ(outcome->plan.tokens_per_s, 200);
  EXPECT_DOUBLE_EQ(outcome->plan.tokens_per_s_bound, 400) << "the bound of all machines";
  ASSERT_EQ(outcome->plan.unused.size(), 2u);
  EXPECT_EQ(outcome->plan.unused[1].reason,
            "not needed: the others carry 200 tokens/s; this saves 9 USD/h");
}

TEST(CheapestTest, KeepsWhatTheRateNeeds) {
  const auto outcome = Cheapest(Problem({300, 100, 100}), {9, 1, 1}, 301);
  ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
  EXPECT_EQ(outcome->plan.stages.size(), 2u) << "the expensive one and one of the others";
}

TEST(CheapestTest, ARateBeyondTheClusterSaysWhatItCarries) {
  const auto outcome = Cheapest(Problem({300, 100}), {9, 1}, 500);
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.status().message(),
            "the cluster carries 400.0 tokens/s in the best plan found, and at most 400.0; 500.0 "
            "are wanted");
}

}  // namespace
}  // namespace millrace::plan
