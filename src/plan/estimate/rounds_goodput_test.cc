#include "plan/estimate/rounds_goodput.h"

#include <gtest/gtest.h>

namespace millrace::plan {
namespace {

// Four alike nodes of up to four layers and eight layers in total; a step reads weights, a prompt
// computes.
GoodputProblem FourSmallNodes() {
  GoodputProblem problem;
  problem.flow.cluster = "four";
  problem.flow.model = "m";
  problem.flow.num_layers = 8;
  problem.flow.partial_inference = false;
  for (int i = 0; i < 4; ++i) {
    problem.flow.nodes.push_back({"n" + std::to_string(i), "g", "", {4000, 2000, 1300, 900}});
    problem.rates.push_back(
        {.prefill_s_per_token = 1e-5, .decode_s_per_step = 2e-3, .decode_s_per_token = 1e-5});
    problem.kv_token_layers.push_back({1 << 20, 1 << 20, 1 << 20, 1 << 20});
  }
  problem.flow.link_tokens_per_s.assign(25, 1e5);
  problem.link_latency_s.assign(25, 1e-3);
  return problem;
}

const Placement kPairs = {{0, 2}, {2, 4}, {4, 6}, {6, 8}};
const Placement kTwoChains = {{0, 4}, {4, 8}, {0, 4}, {4, 8}};

TEST(RoundsGoodput, AnIdleChainTakesItsLayersItsHopsAndHalfARoundOfWaiting) {
  GoodputProblem goodput = FourSmallNodes();
  RoundsProblem problem = RoundsOf(goodput);
  problem.in_flight = 1e-3;  // almost nothing
  const RoundsEstimate e = EstimateRounds(problem, kPairs);
  ASSERT_GT(e.requests_per_s, 0);
  // Eight layers at a batch of two, half a round of each node, and five hops of a token.
  const double plain = 8 * (2e-3 + 2e-5);
  EXPECT_NEAR(e.decode_s, 1.5 * plain + 5 * (1e-3 + 1e-5), 0.01 * e.decode_s);
  EXPECT_GT(e.prompt_s, e.decode_s + 8 * 763 * 1e-5);
  // Little's law.
  EXPECT_NEAR(e.requests_per_s * (e.prompt_s + 232 * e.decode_s), 1e-3, 1e-5);
}

TEST(RoundsGoodput, MoreInFlightIsMoreAndSlower) {
  GoodputProblem goodput = FourSmallNodes();
  RoundsProblem problem = RoundsOf(goodput);
  problem.in_flight = 4;
  const RoundsEstimate few = EstimateRounds(problem, kPairs);
  problem.in_flight = 16;
  const RoundsEstimate many = EstimateRounds(problem, kPairs);
  EXPECT_GT(many.requests_per_s, few.requests_per_s);
  EXPECT_GT(many.decode_s, few.decode_s);
}

TEST(RoundsGoodput, KvLimitsCardsAndTrunksCount) {
  const GoodputProblem rich = FourSmallNodes();
  const double most = EstimateRounds(RoundsOf(rich), kPairs).requests_per_s;
  ASSERT_GT(most, 0);
  GoodputProblem problem = FourSmallNodes();
  for (auto& kv : problem.kv_token_layers) kv.assign(4, 8000);
  EXPECT_LT(EstimateRounds(RoundsOf(problem), kPairs).requests_per_s, most);
  problem = FourSmallNodes();
  const double at_most = EstimateRounds(RoundsOf(rich), kPairs).decode_s;
  problem.tpot_s = 0.9 * at_most;
  const RoundsEstimate kept = EstimateRounds(RoundsOf(problem), kPairs);
  EXPECT_LT(kept.requests_per_s, most);
  EXPECT_LE(kept.decode_s, *problem.tpot_s);
  problem = FourSmallNodes();
  problem.nic_tokens_per_s = {0, 500, 0, 0};
  EXPECT_NEAR(EstimateRounds(RoundsOf(problem), kPairs).requests_per_s, 0.95 * 500 / 995, 1e-4);
  problem = FourSmallNodes();
  problem.trunks = {{.tokens_per_s = 500, .links = {{0, 1}, {2, 3}}}};
  EXPECT_NEAR(EstimateRounds(RoundsOf(problem), kPairs).requests_per_s, 0.95 * 250 / 995, 1e-4);
}

// A prompt in four steps delays the outputs beside it less, and waits for three more rounds.
TEST(RoundsGoodput, PromptsInSeveralStepsDelayOutputsLess) {
  GoodputProblem goodput = FourSmallNodes();
  RoundsProblem whole = RoundsOf(goodput);
  whole.in_flight = 1e-3;
  goodput.prompt_steps = 4;
  RoundsProblem parts = RoundsOf(goodput);
  parts.in_flight = 1e-3;
  EXPECT_NEAR(EstimateRounds(parts, kPairs).prompt_s - EstimateRounds(whole, kPairs).prompt_s,
              3 * 8 * (2e-3 + 2e-5), 1e-3);
  whole.in_flight = parts.in_flight = 40;
  EXPECT_LT(EstimateRounds(parts, kPairs).decode_s, EstimateRounds(whole, kPairs).decode_s);
}

TEST(RoundsGoodput, NothingThatCannotHoldTheRequestsIsWorthAnything) {
  GoodputProblem goodput = FourSmallNodes();
  RoundsProblem problem = RoundsOf(goodput);
  problem.in_flight = 1e9;
  EXPECT_EQ(EstimateRounds(problem, kPairs).requests_per_s, 0);
  EXPECT_EQ(EstimateRounds(RoundsOf(goodput), {{0, 2}, {2, 4}, {4, 6}, {}}).requests_per_s, 0);
}

// With distant nodes, one long chain is slower than two short ones.
TEST(RoundsGoodput, TheSearchLeavesAChainWhereHopsAreDear) {
  GoodputProblem goodput = FourSmallNodes();
  goodput.link_latency_s.assign(25, 50e-3);
  RoundsProblem problem = RoundsOf(goodput);
  problem.in_flight = 8;
  const double chain = EstimateRounds(problem, kPairs).requests_per_s;
  const double two = EstimateRounds(problem, kTwoChains).requests_per_s;
  ASSERT_GT(two, chain);
  const Placement found = SearchRounds(problem, kPairs, 3000, 1);
  EXPECT_GE(EstimateRounds(problem, found).requests_per_s, two);
  EXPECT_EQ(SearchRounds(problem, kPairs, 3000, 1), found);  // a function of its arguments
}

TEST(RoundsGoodput, TheSearchStopsOnRequest) {
  GoodputProblem goodput = FourSmallNodes();
  int asked = 0;
  SearchRounds(RoundsOf(goodput), kPairs, INT64_MAX, 1, [&] { return ++asked == 50; });
  EXPECT_EQ(asked, 50);
}

}  // namespace
}  // namespace millrace::plan
