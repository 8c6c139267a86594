#include "plan/flow_goodput.h"

#include <gtest/gtest.h>

#include "plan/check.h"
#include "plan/planner.h"

namespace millrace::plan {
namespace {

// Four alike nodes and eight layers; reading the weights dominates decode.
GoodputProblem FourNodes() {
  GoodputProblem problem;
  problem.flow.cluster = "four";
  problem.flow.model = "m";
  problem.flow.num_layers = 8;
  for (int i = 0; i < 4; ++i) {
    problem.flow.nodes.push_back(
        {"n" + std::to_string(i), "g", "", {4000, 2000, 1300, 900, 600, 500, 400, 300}});
    problem.rates.push_back(
        {.prefill_s_per_token = 1e-5, .decode_s_per_step = 2e-3, .decode_s_per_token = 1e-5});
    problem.kv_token_layers.push_back(
        {1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20});
  }
  problem.flow.link_tokens_per_s.assign(25, 1e5);
  problem.link_latency_s.assign(25, 1e-3);
  return problem;
}

const Placement kChain = {{0, 2}, {2, 4}, {4, 6}, {6, 8}};

TEST(FlowGoodput, LessKvLessGoodput) {
  GoodputProblem problem = FourNodes();
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
  GoodputProblem problem = FourNodes();
  const GoodputEstimate near = EstimateGoodput(problem, kChain);
  problem.link_latency_s.assign(25, 50e-3);
  const GoodputEstimate far = EstimateGoodput(problem, kChain);
  EXPECT_NEAR(far.tpot_s - near.tpot_s, 5 * 49e-3, 1e-9);
  problem = FourNodes();
  problem.trunks = {{.tokens_per_s = 500, .links = {{0, 1}, {1, 2}}}};
  const GoodputEstimate shared = EstimateGoodput(problem, kChain);
  EXPECT_EQ(shared.limit, "trunk 0");
  EXPECT_NEAR(shared.requests_per_s * 995, 250, 1e-3);
}

TEST(FlowGoodput, LimitsOnLatencyAreKept) {
  GoodputProblem problem = FourNodes();
  const double at_full = EstimateGoodput(problem, kChain).tpot_s;
  problem.tpot_s = at_full * 0.98;
  const GoodputEstimate e = EstimateGoodput(problem, kChain);
  EXPECT_LE(e.tpot_s, *problem.tpot_s);
  EXPECT_EQ(e.limit, "tpot");
}

TEST(FlowGoodput, PartialStagesCostOnlyTheLayersRun) {
  GoodputProblem problem = FourNodes();
  const Placement overlapping = {{0, 4}, {0, 8}, {}, {}};
  const std::vector<FlowEdge> edges = {{std::nullopt, 0, 300}, {0, 1, 300}, {1, std::nullopt, 300}};
  const GoodputEstimate e = EstimateAlong(problem, overlapping, edges);
  // Eight layers of decode in total, not twelve.
  EXPECT_NEAR(e.tpot_s, 8 * 2.01e-3 + 3e-3, 2e-3);
}

TEST(FlowGoodput, RanksByTheEvaluatorAndPlansAreSound) {
  const GoodputProblem problem = FourNodes();
  const CandidateOptions options{
      .top = 5, .flow_iterations = 20'000, .goodput_iterations = 300, .searches = 3};
  const auto by_estimate = RankByGoodput(problem, options, nullptr);
  ASSERT_TRUE(by_estimate.ok());
  for (size_t i = 1; i < by_estimate->size(); ++i) {
    EXPECT_GE((*by_estimate)[i - 1].estimate.requests_per_s,
              (*by_estimate)[i].estimate.requests_per_s);
  }
  int judged = 0;
  const auto fewest = [&](const Plan& plan, const JudgeHints&) -> Result<double> {
    EXPECT_TRUE(CheckPlan(problem.flow, plan).empty());
    ++judged;
    return -static_cast<double>(plan.stages.size());
  };
  const auto by_stages = RankByGoodput(problem, options, fewest);
  ASSERT_TRUE(by_stages.ok());
  EXPECT_EQ(judged, static_cast<int>(by_stages->size()));
  for (size_t i = 1; i < by_stages->size(); ++i) {
    EXPECT_GE(*(*by_stages)[i - 1].score, *(*by_stages)[i].score);
  }
}

TEST(FlowGoodput, LimitsThatNothingKeepsAreAnError) {
  GoodputProblem problem = FourNodes();
  problem.tpot_s = 1e-6;
  const CandidateOptions options{.flow_iterations = 2'000, .goodput_iterations = 30};
  const auto candidates = RankByGoodput(problem, options, nullptr);
  ASSERT_FALSE(candidates.ok());
  EXPECT_EQ(candidates.status().message(), "no placement keeps to the limits at any rate");
}

// Each query advances it by a millisecond.
class BusyClock : public Clock {
 public:
  Time Now() const override { return now_ = now_ + Duration::Millis(1); }

 private:
  mutable Time now_;
};

TEST(FlowGoodput, TheTimeLimitEndsEverySearchAndTheJudging) {
  const GoodputProblem problem = FourNodes();
  const BusyClock clock;
  CandidateOptions options{.flow_iterations = INT64_MAX / 16,
                           .goodput_iterations = INT64_MAX / 16,
                           .rounds_iterations = INT64_MAX / 16,
                           .clock = &clock,
                           .time_limit_s = 2};
  std::vector<GoodputProgress> told;
  options.progress = [&](const GoodputProgress& progress) { told.push_back(progress); };
  // Each scoring takes 0.4 s: at most three begin in the second half.
  int judged = 0;
  const auto slow = [&](const Plan& plan, const JudgeHints&) -> Result<double> {
    for (int i = 0; i < 400; ++i) clock.Now();
    ++judged;
    return static_cast<double>(plan.stages.size());
  };
  const Time begin = clock.Now();
  const auto ranked = RankByGoodput(problem, options, slow);
  const double took_s = (clock.Now() - begin).seconds();
  ASSERT_TRUE(ranked.ok()) << ranked.status().ToString();
  EXPECT_LT(took_s, 2 + 0.5);
  EXPECT_GE(judged, 1);
  EXPECT_LE(judged, 3);
  ASSERT_GT(std::ssize(*ranked), judged);
  EXPECT_TRUE(ranked->front().score.has_value());  // the best of those with a score
  EXPECT_FALSE(ranked->back().score.has_value());
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().doing, "judging");
  EXPECT_GT(told.front().requests_per_s, 0);
  EXPECT_LT(told.front().elapsed_s, told.back().elapsed_s);
}

// One node is faster alone than with slow ones behind slow links, so the others stay unused.
TEST(FlowGoodput, NeverWorseThanTheBestSingleMachine) {
  GoodputProblem problem = FourNodes();
  problem.flow.link_tokens_per_s.assign(25, 400);
  problem.link_latency_s.assign(25, 2);
  for (int i = 0; i < 4; ++i) {  // requests reach every node, and answers return, as usual
    problem.flow.link_tokens_per_s[4 * 5 + i] = problem.flow.link_tokens_per_s[i * 5 + 4] = 1e5;
    problem.link_latency_s[4 * 5 + i] = problem.link_latency_s[i * 5 + 4] = 1e-3;
  }
  for (int i = 1; i < 4; ++i) {
    problem.flow.nodes[i].tokens_per_s = {40, 20};
    problem.kv_token_layers[i] = {1 << 10, 1 << 10};
  }
  problem.flow.nodes[0].tokens_per_s.back() = 900;
  Placement alone(4);
  alone[0] = {0, 8};
  const CandidateOptions options{
      .top = 3, .flow_iterations = 20'000, .goodput_iterations = 300, .rounds_iterations = 300};
  // By the estimate, and by an evaluator that prefers the single machine to every other plan.
  const auto by_estimate = RankByGoodput(problem, options, nullptr);
  ASSERT_TRUE(by_estimate.ok());
  EXPECT_GE(by_estimate->front().estimate.requests_per_s,
            EstimateGoodput(problem, alone).requests_per_s);
  const auto lonely = [](const Plan& plan, const JudgeHints&) -> Result<double> {
    return plan.stages.size() == 1 ? 2.0 : 1.0;
  };
  const auto judged = RankByGoodput(problem, options, lonely);
  ASSERT_TRUE(judged.ok());
  EXPECT_EQ(judged->front().placement, alone);
  const Plan plan = MakePlan(problem.flow, judged->front().placement, judged->front().flow, 1000);
  ASSERT_EQ(plan.unused.size(), 3u);
  for (const auto& unused : plan.unused) EXPECT_FALSE(unused.reason.empty());
}

TEST(FlowGoodput, RefusesTablesOfAnotherCluster) {
  GoodputProblem problem = FourNodes();
  problem.rates.pop_back();
  EXPECT_FALSE(RankByGoodput(problem, {}, nullptr).ok());
}

}  // namespace
}  // namespace millrace::plan
