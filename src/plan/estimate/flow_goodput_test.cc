#include "plan/estimate/flow_goodput.h"

#include <gtest/gtest.h>

#include "plan/estimate/testing_goodput.h"

namespace millrace::plan {
namespace {

const Placement kChain = {{0, 2}, {2, 4}, {4, 6}, {6, 8}};

TEST(FlowGoodput, LessKvLessGoodput) {
  GoodputProblem problem = FourAlikeNodes();
  const GoodputEstimate rich = EstimateGoodput(problem, kChain);
  EXPECT_EQ(rich.limit, "flow");
  EXPECT_NEAR(rich.requests_per_s * 995, 2000, 1e-6);
  for (auto& kv : problem.kv_token_layers) kv.assign(8, 4000);
  const GoodputEstimate poor = EstimateGoodput(problem, kChain);
  EXPECT_EQ(poor.limit.substr(0, 5), "KV of");
  EXPECT_LT(poor.requests_per_s, rich.requests_per_s);
  // Little's law holds at the returned rate: it fills the KV.
  EXPECT_NEAR(poor.requests_per_s * poor.residence_s * (763 + 116) * 2, 4000, 1);
}

TEST(FlowGoodput, LatencyAndTrunksCount) {
  GoodputProblem problem = FourAlikeNodes();
  const GoodputEstimate near = EstimateGoodput(problem, kChain);
  problem.link_latency_s.assign(25, 50e-3);
  const GoodputEstimate far = EstimateGoodput(problem, kChain);
  EXPECT_NEAR(far.tpot_s - near.tpot_s, 5 * 49e-3, 1e-9);
  problem = FourAlikeNodes();
  problem.trunks = {{.tokens_per_s = 500, .links = {{0, 1}, {1, 2}}}};
  const GoodputEstimate shared = EstimateGoodput(problem, kChain);
  EXPECT_EQ(shared.limit, "trunk 0");
  EXPECT_NEAR(shared.requests_per_s * 995, 250, 1e-3);
}

TEST(FlowGoodput, LimitsOnLatencyAreKept) {
  GoodputProblem problem = FourAlikeNodes();
  const double at_full = EstimateGoodput(problem, kChain).tpot_s;
  problem.tpot_s = at_full * 0.98;
  const GoodputEstimate e = EstimateGoodput(problem, kChain);
  EXPECT_LE(e.tpot_s, *problem.tpot_s);
  EXPECT_EQ(e.limit, "tpot");
}

TEST(FlowGoodput, PartialStagesCostOnlyTheLayersRun) {
  GoodputProblem problem = FourAlikeNodes();
  const Placement overlapping = {{0, 4}, {0, 8}, {}, {}};
  const std::vector<FlowEdge> edges = {{std::nullopt, 0, 300}, {0, 1, 300}, {1, std::nullopt, 300}};
  const GoodputEstimate e = EstimateAlong(problem, overlapping, edges);
  // Eight layers of decode in total, not twelve.
  EXPECT_NEAR(e.tpot_s, 8 * 2.01e-3 + 3e-3, 2e-3);
}

TEST(FlowGoodput, LimitsThatNothingKeepsAreAnError) {
  GoodputProblem problem = FourAlikeNodes();
  problem.tpot_s = 1e-6;
  const CandidateOptions options{.flow_iterations = 2'000, .goodput_iterations = 30};
  const auto candidates = RankByGoodput(problem, options);
  ASSERT_FALSE(candidates.ok());
  EXPECT_EQ(candidates.status().message(), "no placement keeps to the limits at any rate");
}

TEST(FlowGoodput, RefusesTablesOfAnotherCluster) {
  GoodputProblem problem = FourAlikeNodes();
  problem.rates.pop_back();
  EXPECT_FALSE(RankByGoodput(problem, {}).ok());
}

}  // namespace
}  // namespace millrace::plan
