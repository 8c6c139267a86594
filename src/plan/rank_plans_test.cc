#include "plan/rank_plans.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "plan/estimate/testing_goodput.h"
#include "plan/flow/check.h"
#include "plan/flow/flow_problem.h"

namespace millrace::plan {
namespace {

RankOptions Short() {
  RankOptions options{.top = 6};
  options.colocated = {.flow_iterations = 20'000,
                       .goodput_iterations = 300,
                       .rounds_iterations = 300,
                       .searches = 3};
  options.roles = {.evaluations = 60, .pool_iterations = 100};
  return options;
}

int CountRoles(const std::vector<PlanCandidate>& ranked) {
  return static_cast<int>(
      std::ranges::count_if(ranked, [](const PlanCandidate& c) { return c.roles; }));
}

TEST(RankPlans, RanksByTheEvaluatorAndPlansAreSound) {
  const GoodputProblem problem = FourAlikeNodes();
  const auto by_estimate = RankPlans(problem, Short(), nullptr);
  ASSERT_TRUE(by_estimate.ok());
  for (size_t i = 1; i < by_estimate->size(); ++i) {
    EXPECT_GE((*by_estimate)[i - 1].estimate.requests_per_s,
              (*by_estimate)[i].estimate.requests_per_s);
  }
  EXPECT_GT(CountRoles(*by_estimate), 0);
  EXPECT_LT(CountRoles(*by_estimate), std::ssize(*by_estimate));
  CheckOptions check;
  check.prompt_tokens = problem.prompt_tokens;
  check.output_tokens = problem.output_tokens;
  int judged = 0;
  const auto fewest = [&](const Plan& plan, const JudgeHints&) -> Result<double> {
    const auto violations = CheckPlan(problem.flow, plan, check);
    EXPECT_TRUE(violations.empty()) << violations.front();
    ++judged;
    return -static_cast<double>(plan.stages.size());
  };
  const auto by_stages = RankPlans(problem, Short(), fewest);
  ASSERT_TRUE(by_stages.ok());
  EXPECT_EQ(judged, static_cast<int>(by_stages->size()));
  for (size_t i = 1; i < by_stages->size(); ++i) {
    EXPECT_GE(*(*by_stages)[i - 1].score, *(*by_stages)[i].score);
  }
}

// Each query advances it by a millisecond.
class BusyClock : public Clock {
 public:
  Time Now() const override { return now_ = now_ + Duration::Millis(1); }

 private:
  mutable Time now_;
};

TEST(RankPlans, TheTimeLimitEndsEverySearchAndTheJudging) {
  const GoodputProblem problem = FourAlikeNodes();
  const BusyClock clock;
  RankOptions options;
  options.colocated = {.flow_iterations = INT64_MAX / 16,
                       .goodput_iterations = INT64_MAX / 16,
                       .rounds_iterations = INT64_MAX / 16};
  options.roles = {.evaluations = INT32_MAX, .pool_iterations = INT32_MAX};
  options.clock = &clock;
  options.time_limit_s = 2;
  std::vector<GoodputProgress> told;
  options.progress = [&](const GoodputProgress& progress) { told.push_back(progress); };
  // Each scoring takes 0.4 s: at most four begin in what is left.
  int judged = 0;
  const auto slow = [&](const Plan& plan, const JudgeHints&) -> Result<double> {
    for (int i = 0; i < 400; ++i) clock.Now();
    ++judged;
    return static_cast<double>(plan.stages.size());
  };
  const Time begin = clock.Now();
  const auto ranked = RankPlans(problem, options, slow);
  const double took_s = (clock.Now() - begin).seconds();
  ASSERT_TRUE(ranked.ok()) << ranked.status().ToString();
  EXPECT_LT(took_s, 2 + 0.5);
  EXPECT_GE(judged, 1);
  EXPECT_LE(judged, 4);
  ASSERT_GT(std::ssize(*ranked), judged);
  EXPECT_TRUE(ranked->front().score.has_value());  // the best of those with a score
  EXPECT_FALSE(ranked->back().score.has_value());
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back().doing, "judging");
  EXPECT_GT(told.front().requests_per_s, 0);
  EXPECT_LT(told.front().elapsed_s, told.back().elapsed_s);
}

// One node is faster alone than with slow ones behind slow links, so the others stay unused.
TEST(RankPlans, NeverWorseThanTheBestSingleMachine) {
  GoodputProblem problem = FourAlikeNodes();
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
  AddPhaseRates(problem);
  Placement alone(4);
  alone[0] = {0, 8};
  // By the estimate, and by an evaluator that prefers the single machine to every other plan.
  const auto by_estimate = RankPlans(problem, Short(), nullptr);
  ASSERT_TRUE(by_estimate.ok());
  EXPECT_GE(by_estimate->front().estimate.requests_per_s,
            EstimateGoodput(problem, alone).requests_per_s);
  const auto lonely = [](const Plan& plan, const JudgeHints&) -> Result<double> {
    return plan.stages.size() == 1 ? 2.0 : 1.0;
  };
  const auto judged = RankPlans(problem, Short(), lonely);
  ASSERT_TRUE(judged.ok());
  EXPECT_TRUE(judged->front().single_machine);
  const Plan& plan = judged->front().plan;
  ASSERT_EQ(plan.stages.size(), 1u);
  EXPECT_EQ(plan.stages[0].nodes, std::vector<NodeIndex>{0});
  ASSERT_EQ(plan.unused.size(), 3u);
  for (const auto& unused : plan.unused) EXPECT_FALSE(unused.reason.empty());
}

// The evaluator hears the best score of the plans of the same kind: both kinds get a number.
TEST(RankPlans, PlansWithRolesCompeteWithEachOther) {
  const auto stages = [](const Plan& plan, const JudgeHints& hints) -> Result<double> {
    const double score = HasRoles(plan) ? 1 : 2;
    if (hints.best_score >= score) return FailedPrecondition("not better");
    return score;
  };
  const auto ranked = RankPlans(FourAlikeNodes(), Short(), stages);
  ASSERT_TRUE(ranked.ok());
  ASSERT_GE(ranked->size(), 2u);
  EXPECT_FALSE((*ranked)[0].roles);
  EXPECT_TRUE((*ranked)[1].roles);
  EXPECT_EQ((*ranked)[1].score, 1);
}

// Few judgements go to plans with equally many pipelines of each role while there are others.
TEST(RankPlans, DifferentShapesAreJudgedFirst) {
  RankOptions options = Short();
  options.top = 5;
  options.restarts = 0;
  std::vector<std::array<int, 3>> shapes;
  const auto note = [&](const Plan& plan, const JudgeHints&) -> Result<double> {
    std::array<int, 3> shape{};
    for (const StagePlan& stage : plan.stages) {
      if (stage.layers.end == plan.num_layers) ++shape[static_cast<size_t>(stage.role)];
    }
    if (HasRoles(plan)) shapes.push_back(shape);
    return 1.0;
  };
  ASSERT_TRUE(RankPlans(FourAlikeNodes(), options, note).ok());
  ASSERT_EQ(shapes.size(), 2u);
  EXPECT_NE(shapes[0], shapes[1]);
}

// The evaluator likes unused nodes, which no estimate does: the search goes on from such a plan.
TEST(RankPlans, SearchesOnFromTheBestOfThoseJudged) {
  const auto fewest = [](const Plan& plan, const JudgeHints&) -> Result<double> {
    return -static_cast<double>(plan.stages.size());
  };
  const auto methods = [&](int restarts) {
    RankOptions options = Short();
    options.restarts = restarts;
    std::vector<std::string> found;
    const auto ranked = RankPlans(FourAlikeNodes(), options, fewest);
    EXPECT_TRUE(ranked.ok());
    for (const PlanCandidate& c : *ranked) {
      EXPECT_TRUE(c.score.has_value());
      if (c.method.ends_with(", searched on from the best")) found.push_back(c.method);
    }
    return found;
  };
  EXPECT_TRUE(methods(0).empty());
  const auto some = methods(2);
  EXPECT_GE(some.size(), 1u);
  EXPECT_LE(some.size(), 2u);
  EXPECT_EQ(some, methods(2));
}

}  // namespace
}  // namespace millrace::plan
