// The search with --survive, and what it says where no plan keeps the limits.
#include "apps/plan/goodput_search.h"

#include <gtest/gtest.h>

#include "apps/plan/report.h"
#include "plan/roles/testing_roles.h"

namespace millrace::apps {
namespace {

// Of one request on a node of plan::TestNode: 800 tokens of prompt and 100 of output.
double RequestSeconds(double prompt_s) { return 4 * (800 * prompt_s + 100 * (2e-3 / 32 + 1e-5)); }

// Nodes that hold the model, by the time of a token of a prompt in a layer.
PlanInputs InputsOf(const std::vector<double>& prompt_s) {
  std::vector<plan::TestNode> nodes;
  PlanInputs inputs;
  inputs.cluster.name = "test";
  for (const double seconds : prompt_s) {
    nodes.push_back({.kind = "d", .max_layers = 4, .prompt_s = seconds});
    nodes.back().kind += std::to_string(seconds);
    inputs.cluster.nodes.push_back({.name = "n" + std::to_string(nodes.size() - 1), .device = "d"});
  }
  inputs.goodput = plan::RoleTestProblem(4, nodes, 1e9, 2);
  inputs.problem = inputs.goodput->flow;
  return inputs;
}

class GoodputSearchTest : public ::testing::Test {
 protected:
  Result<GoodputAnswer> Search(const PlanInputs& inputs, bool survive) {
    options_.clock = &clock_;
    options_.time_limit_s = 60;  // the counts end the search
    options_.survive = survive;
    return SearchGoodput(inputs, options_);
  }
  double RateOf(const PlanInputs& inputs, bool survive) {
    const auto answer = Search(inputs, survive);
    EXPECT_TRUE(answer.ok()) << answer.status().ToString();
    return answer.ok() ? answer->Best(false)->estimate.requests_per_s : 0;
  }

  ManualClock clock_;
  GoodputSearchOptions options_;
};

TEST_F(GoodputSearchTest, SurviveIsTheRateAfterTheWorstLoss) {
  PlanInputs inputs = InputsOf({0, 1e-5, 1e-5});
  const double fast = 1 / RequestSeconds(0), slow = 1 / RequestSeconds(1e-5);
  EXPECT_NEAR(RateOf(inputs, false), fast + 2 * slow, 1e-3);
  EXPECT_NEAR(RateOf(inputs, true), 2 * slow, 1e-3);  // the fast one is lost
  inputs.cluster.nodes[1].spot = true;
  EXPECT_NEAR(RateOf(inputs, true), fast + slow, 1e-3);  // only the spot node may be
  const auto answer = Search(inputs, true);
  ASSERT_TRUE(answer.ok());
  EXPECT_NE(GoodputText(*answer, options_, inputs.cluster)
                .find("all rates are those after the loss of any one spot node\n"),
            std::string::npos);
}

// The evaluator judges what is left after a loss, not the plan itself.
TEST_F(GoodputSearchTest, SurviveJudgesWhatIsLeft) {
  const PlanInputs inputs = InputsOf({1e-5, 1e-5, 1e-5});
  size_t most = 0;
  options_.judge = [&](const Plan& plan, const plan::JudgeHints&) -> Result<double> {
    most = std::max(most, plan.stages.size());
    return static_cast<double>(plan.stages.size());
  };
  const auto answer = Search(inputs, true);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(most, 2u);
  EXPECT_EQ(answer->best().score, 2);
  EXPECT_EQ(answer->best().plan.stages.size(), 3u);
}

// A plan of another search with two stages in each node: both are lost with it.
TEST_F(GoodputSearchTest, SurviveRatesPlansWithSeveralStagesOnANode) {
  PlanInputs inputs = InputsOf({1e-5, 1e-5});
  plan::PlanCandidate& other = options_.others.emplace_back();
  other.plan = {.model = "m", .cluster = "test", .num_layers = 4, .partial_inference = false};
  for (int stage = 0; stage < 4; ++stage) {
    inputs.goodput->flow.nodes[static_cast<size_t>(stage / 2)].devices = 2;
    inputs.goodput->flow.nodes[static_cast<size_t>(stage / 2)].room_layers = 8;
    other.plan.stages.push_back({.nodes = {stage / 2}, .layers = {0, 4}});
    other.plan.edges.push_back({std::nullopt, stage, 10});
    other.plan.edges.push_back({stage, std::nullopt, 10});
  }
  inputs.problem = inputs.goodput->flow;
  other.method = "other";
  other.estimate.requests_per_s = 1000;
  std::vector<size_t> judged;
  options_.judge = [&](const Plan& plan, const plan::JudgeHints&) -> Result<double> {
    if (plan.stages.front().tensor_parallel == 1) judged.push_back(plan.stages.size());
    return 1.0;
  };
  const auto answer = Search(inputs, true);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  const auto found = std::ranges::find(answer->ranked, "other", &plan::PlanCandidate::method);
  ASSERT_NE(found, answer->ranked.end());
  EXPECT_EQ(judged, (std::vector<size_t>{2, 2})) << "after the loss of either node";
  // Each of the two that are left takes twice as long as the node.
  EXPECT_NEAR(found->estimate.requests_per_s, 1 / RequestSeconds(1e-5), 1e-3);
  EXPECT_NE(found->estimate.limit.find(" after the loss of n0"), std::string::npos)
      << found->estimate.limit;
}

// A catalogue device becomes a node with these times.
std::function<Result<plan::GoodputProblem>(const ClusterSpec&)> OnlyFast(const char* fast_device) {
  return [fast = std::string(fast_device)](const ClusterSpec& cluster) {
    std::vector<double> prompt_s(cluster.nodes.size() - 1, 1e-4);
    prompt_s.push_back(cluster.nodes.back().device == fast ? 1e-5 : 1e-4);
    return Result<plan::GoodputProblem>(*InputsOf(prompt_s).goodput);
  };
}

// A prompt takes 4 layers x 800 tokens x 0.1 ms = 0.32 s, and a token 8.04 ms.
TEST_F(GoodputSearchTest, AdviceNamesTheLimitAndTheDevice) {
  PlanInputs inputs = InputsOf({1e-4});
  inputs.goodput_for = OnlyFast("h100-80gb");
  options_.limits = {.ttft_s = 0.1, .tpot_s = 0.1};
  const auto answer = Search(inputs, false);
  ASSERT_EQ(answer.status().code(), StatusCode::kFailedPrecondition);
  const std::string said = answer.status().message();
  EXPECT_NE(said.find("a TTFT of 0.32 s and a TPOT of 8.04 ms when almost idle; the limit on TTFT "
                      "binds"),
            std::string::npos)
      << said;
  EXPECT_NE(said.find("; one more h100-80gb ("), std::string::npos) << said;
  inputs.goodput_for = OnlyFast("none");
  options_.limits.tpot_s = 1e-3;
  const std::string none = Search(inputs, false).status().message();
  EXPECT_NE(none.find("; each limit alone is missed, too; no device of the catalogue"),
            std::string::npos)
      << none;
}

// The node keeps the limits, but may be lost: the one to add must keep them alone.
TEST_F(GoodputSearchTest, AdviceForSurviveIsForWhatIsLeft) {
  PlanInputs inputs = InputsOf({1e-5});
  inputs.goodput_for = [](const ClusterSpec& cluster) -> Result<plan::GoodputProblem> {
    const bool fast = cluster.nodes.back().device == "h100-80gb";
    return *InputsOf({1e-5, fast ? 1e-5 : 1e-4}).goodput;
  };
  options_.limits = {.ttft_s = 0.1, .tpot_s = 0.1};
  EXPECT_TRUE(Search(inputs, false).ok());
  const std::string said = Search(inputs, true).status().message();
  EXPECT_NE(said.find("meets the limits after the loss of a node;"), std::string::npos) << said;
  EXPECT_NE(said.find("; one more h100-80gb ("), std::string::npos) << said;
}

// As DistServe's search makes them: two stages of one device each in one node of two.
TEST(PlanReport, ANodeWithSeveralStagesCountsAndCostsOnce) {
  ClusterSpec cluster;
  cluster.nodes = {{.name = "a", .device = "g", .device_count = 2, .price_usd_per_hour = 3},
                   {.name = "b", .device = "g", .device_count = 2, .price_usd_per_hour = 3}};
  GoodputAnswer answer;
  plan::PlanCandidate& best = answer.ranked.emplace_back();
  best.plan.num_layers = 4;
  best.plan.stages = {{.nodes = {0}, .layers = {0, 4}}, {.nodes = {0}, .layers = {0, 4}}};
  best.plan.tokens_per_s = best.plan.tokens_per_s_bound = 100;
  best.estimate.requests_per_s = 5;  // without a latency
  best.estimate.limit = "TTFT";
  const std::string summary = PlanSummary(OutcomeOf(answer), cluster, "a test");
  EXPECT_NE(summary.find("4 layers, 1 of 2 nodes used"), std::string::npos) << summary;
  EXPECT_NE(summary.find(" 3.00 USD/h"), std::string::npos) << summary;
  const std::string text = GoodputText(answer, {}, cluster);
  EXPECT_NE(text.find("estimate: 5 req/s, bound by TTFT\n"), std::string::npos) << text;
  EXPECT_NE(text.find("both on 1 x gx2\n"), std::string::npos) << text;
}

// A plan with roles was printed above "Do not separate" when the time ended the simulations.
TEST(PlanReport, TheVerdictNeverContradictsThePlan) {
  ClusterSpec cluster;
  cluster.nodes = {{.name = "a", .device = "g"}};
  const auto text = [&](std::optional<double> with, double with_estimated,
                        std::optional<double> without, double without_estimated,
                        const GoodputSearchOptions& options = {}) {
    GoodputAnswer answer;
    for (const bool roles : {true, false}) {
      plan::PlanCandidate& c = answer.ranked.emplace_back();
      c.roles = roles;
      c.plan.stages = {{.nodes = {0}, .layers = {0, 4}}};
      c.score = roles ? with : without;
      c.estimate = {.requests_per_s = roles ? with_estimated : without_estimated, .limit = "TTFT"};
    }
    if (without.value_or(0) > with.value_or(0)) std::swap(answer.ranked[0], answer.ranked[1]);
    const std::string all = GoodputText(answer, options, cluster);
    return all.substr(all.rfind('\n', all.size() - 2) + 1);
  };
  // Estimates were to be judged, and there was no time for it.
  GoodputSearchOptions judged;
  judged.judge = [](const Plan&, const plan::JudgeHints&) -> Result<double> { return 0.0; };
  EXPECT_NE(text(std::nullopt, 49.5, std::nullopt, 22.6, judged).find("is not decided"),
            std::string::npos);
  EXPECT_NE(text(std::nullopt, 49.5, std::nullopt, 22.6).find("it gains 119 %"), std::string::npos);
  EXPECT_EQ(text(0.318, 0.4, std::nullopt, 0.615),
            "Whether to separate prefill and decode is not decided, because --time-limit ended the "
            "simulations; by the estimates it loses 35 %. Allow more time to decide it.\n");
  EXPECT_EQ(text(2, 1, 1, 1), "Separate prefill and decode: it gains 100 %.\n");
  EXPECT_EQ(text(1.001, 1, 1, 1), "Separate prefill and decode: it gains nothing.\n");
  EXPECT_EQ(text(0.65, 1, 1, 1), "Do not separate prefill and decode: it loses 35 %.\n");
  EXPECT_EQ(text(0.0, 1, 1, 1),
            "Do not separate prefill and decode: it misses the limits at any rate.\n");
  EXPECT_EQ(text(1, 1, 0.0, 1),
            "Separate prefill and decode: it keeps the limits, which are missed without it.\n");
}

}  // namespace
}  // namespace millrace::apps
