#include "stage/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "base/rng.h"
#include "core/no_token_left.h"

namespace millrace::stage {
namespace {

SamplingState StateWith(const std::function<void(SamplingParams&)>& change, uint64_t seed = 1,
                        std::vector<TokenId> prompt = {0}) {
  auto params = std::make_shared<SamplingParams>();
  change(*params);
  return SamplingState({SequenceId(1), params, seed,
                        std::make_shared<const std::vector<TokenId>>(std::move(prompt))});
}

TokenId Pick(std::vector<float> logits, SamplingState& state, int position = 1,
             std::vector<TokenId> eos = {}) {
  Sampler sampler;
  auto choice = sampler.Sample(logits, position, state, eos);
  EXPECT_TRUE(choice.ok()) << choice.status().ToString();
  return choice->token;
}

// How often each token is drawn over many positions.
std::map<TokenId, double> Frequencies(const std::vector<float>& logits,
                                      const std::function<void(SamplingParams&)>& change,
                                      int draws = 20000) {
  SamplingState state = StateWith(change);
  Sampler sampler;
  std::map<TokenId, double> frequency;
  for (int i = 0; i < draws; ++i) {
    std::vector<float> copy = logits;
    frequency[sampler.Sample(copy, i + 1, state, {})->token] += 1.0 / draws;
  }
  return frequency;
}

TEST(Sampler, GreedyTakesTheSmallestIdOnTies) {
  auto state = StateWith([](auto& p) { p.temperature = 0; });
  EXPECT_EQ(Pick({1, 3, 3, 2}, state), 1);
}

TEST(Sampler, IsAFunctionOfSeedAndPosition) {
  std::vector<float> logits(100);
  for (int i = 0; i < 100; ++i) logits[i] = static_cast<float>(i % 7);
  auto a = StateWith([](auto&) {}, 5), b = StateWith([](auto&) {}, 5),
       c = StateWith([](auto&) {}, 6);
  int equal = 0;
  for (int position = 40; position > 0; --position) {  // any order of positions
    TokenId token = Pick(logits, a, position);
    EXPECT_EQ(token, Pick(logits, b, position));
    equal += token == Pick(logits, c, position);
  }
  EXPECT_LT(equal, 20) << "a different seed draws different tokens";
}

TEST(Sampler, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {std::log(1.f), std::log(2.f), std::log(5.f), std::log(2.f)};
  auto plain = Frequencies(logits, [](auto&) {});
  EXPECT_NEAR(plain[0], 0.1, 0.01);
  EXPECT_NEAR(plain[2], 0.5, 0.015);
  auto cold = Frequencies(logits, [](auto& p) { p.temperature = 0.5; });  // squared weights
  EXPECT_NEAR(cold[2], 25.0 / 34, 0.015);
}

TEST(Sampler, TopKTopPAndMinPKeepTheRightTokens) {
  const std::vector<float> logits = {std::log(1.f), std::log(2.f), std::log(5.f), std::log(2.f)};
  auto k = Frequencies(logits, [](auto& p) { p.top_k = 2; });
  EXPECT_EQ(k.size(), 2u);
  EXPECT_NEAR(k[1], 2.0 / 7, 0.015) << "the tie goes to the smaller id";
  auto p = Frequencies(logits, [](auto& p) { p.top_p = 0.6; });
  EXPECT_EQ(p.size(), 2u) << "0.5 does not reach 0.6, 0.7 does";
  auto tiny = Frequencies(
      logits, [](auto& p) { p.top_p = 1e-9; }, 100);
  EXPECT_EQ(tiny.size(), 1u);
  auto m = Frequencies(logits, [](auto& p) { p.min_p = 0.3; });
  EXPECT_EQ(m.size(), 3u) << "0.1 is below 0.3 of 0.5";
  auto beyond = Frequencies(logits, [](auto& p) { p.top_k = 1000; });
  EXPECT_EQ(beyond.size(), 4u) << "top_k beyond the vocabulary is no limit";
}

TEST(Sampler, TopPEqualsANaiveSortOnRandomLogits) {
  Rng rng(3);
  Sampler sampler;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<float> logits(2000);
    for (float& x : logits) x = static_cast<float>(rng.Uniform() * 8);
    const double top_p = rng.Uniform();
    std::vector<int> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
    double total = 0, mass = 0;
    for (float x : logits) total += std::exp(x - logits[order[0]]);
    size_t kept = 0;
    while (kept < order.size() && (kept == 0 || mass < top_p * total * (1 + 1e-6))) {
      mass += std::exp(logits[order[kept++]] - logits[order[0]]);
    }
    auto state = StateWith([&](auto& p) { p.top_p = top_p; });
    auto token = sampler.Sample(logits, trial + 1, state, {})->token;
    auto place = std::find(order.begin(), order.end(), token) - order.begin();
    EXPECT_LT(static_cast<size_t>(place), kept);
  }
}

TEST(Sampler, OnlyRowsThatNeedNothingElseAreLeftToTheDevice) {
  const auto token_only = [](const std::function<void(SamplingParams&)>& change) {
    return NeedsTokenOnly(StateWith(change, 1, {0, 1}), 4);
  };
  EXPECT_TRUE(token_only([](auto& p) { p.temperature = 0; }));
  EXPECT_TRUE(token_only([](auto& p) { p.top_k = 3, p.top_p = 0.5, p.min_p = 0.1; }));
  EXPECT_TRUE(token_only([](auto& p) { p.min_tokens = 2; }));
  EXPECT_FALSE(token_only([](auto& p) { p.min_tokens = 3; })) << "EOS may not be chosen yet";
  EXPECT_FALSE(token_only([](auto& p) { p.logprobs = 0; }));
  EXPECT_FALSE(token_only([](auto& p) { p.logit_bias = {{1, 0.5f}}; }));
  EXPECT_FALSE(token_only([](auto& p) { p.repetition_penalty = 1.1; }));
  EXPECT_FALSE(token_only([](auto& p) { p.presence_penalty = 0.1; }));
  EXPECT_FALSE(token_only([](auto& p) { p.frequency_penalty = -0.1; }));
}

TEST(Sampler, PenaltiesCountTheRightTokens) {
  // Prompt {0, 1}, output {2, 2}.
  auto with = [](auto change) {
    auto state = StateWith(change, 1, {0, 1});
    state.Record(2, std::vector<TokenId>{2, 2});
    return state;
  };
  auto repetition = with([](auto& p) { p.temperature = 0, p.repetition_penalty = 2; });
  EXPECT_EQ(Pick({4, 4, 4, 3}, repetition, 4), 3) << "prompt and output both count";
  auto negative = with([](auto& p) { p.temperature = 0, p.repetition_penalty = 2; });
  EXPECT_EQ(Pick({-1, -1, -1, -1.5}, negative, 4), 3) << "negative logits become more negative";
  auto presence = with([](auto& p) { p.temperature = 0, p.presence_penalty = 1; });
  EXPECT_EQ(Pick({0, 3, 3.5, 0}, presence, 4), 1) << "the prompt does not count";
  auto frequency = with([](auto& p) { p.temperature = 0, p.frequency_penalty = 1; });
  EXPECT_EQ(Pick({0, 2, 3.5, 0}, frequency, 4), 1) << "twice in the output: minus 2";
}

TEST(Sampler, CountsAreRightAfterAReplay) {
  auto state = StateWith([](auto& p) { p.temperature = 0, p.frequency_penalty = 1; }, 1, {0});
  state.Record(1, std::vector<TokenId>{1, 1, 2});
  EXPECT_EQ(state.CountsUpTo(4).at(1).output, 2);
  state.Record(0, std::vector<TokenId>{0, 1, 1, 2});  // recomputed after a preemption
  EXPECT_EQ(state.CountsUpTo(4).at(1).output, 2);
  EXPECT_EQ(state.CountsUpTo(2).at(1).output, 1);
}

// Whatever passes Validate chooses a token.
TEST(Sampler, TheEndsOfEveryRange) {
  constexpr double kLeast = std::numeric_limits<double>::denorm_min();
  const std::vector<float> logits = {-3, 1, 2.5, -INFINITY, 2.4f, 0};
  for (const double temperature : {kLeast, 1e-310, 1e-45, 1e-39, 1e-38, 1e-30, 1e-6, 1.0, 100.0}) {
    for (const double top_p : {kLeast, 1e-45, 0.5, 1.0}) {
      for (const double min_p : {0.0, kLeast, 1.0}) {
        for (const double penalty : {kLeast, 1e-45, 1e-38, 1.0, 100.0}) {
          auto state = StateWith(
              [&](auto& p) {
                p.temperature = temperature, p.top_p = top_p, p.min_p = min_p;
                p.repetition_penalty = penalty, p.top_k = penalty == 100 ? 3 : 0;
              },
              1, {3, 5});
          const TokenId token = Pick(logits, state, 2);
          EXPECT_NE(token, 3) << "it is banned";
          if (temperature < 1e-5) {
            EXPECT_EQ(token, 2) << "greedy in effect: " << temperature;
          }
        }
      }
    }
  }
  // A logit that is penalised with next to nothing is the likeliest.
  auto boosted =
      StateWith([](auto& p) { p.temperature = 0, p.repetition_penalty = kLeast; }, 1, {1});
  EXPECT_EQ(Pick(logits, boosted, 1), 1);
  // 100 is nearly uniform.
  const auto uniform = Frequencies({0, 1, 2, 3}, [](auto& p) { p.temperature = 100; });
  for (const auto& [token, share] : uniform) EXPECT_NEAR(share, 0.25, 0.02) << token;
}

TEST(Sampler, BiasAndMinTokens) {
  auto bias = StateWith([](auto& p) {
    p.temperature = 0, p.logit_bias = {{3, 10.f}, {1, -100.f}};
  });
  EXPECT_EQ(Pick({1, 9, 2, 0}, bias), 3);
  auto early =
      StateWith([](auto& p) { p.temperature = 0, p.min_tokens = 2, p.stop_token_ids = {1}; });
  EXPECT_EQ(Pick({5, 9, 2, 10}, early, 1, {3}), 0) << "EOS and stop tokens are banned";
  EXPECT_EQ(Pick({5, 9, 2, 10}, early, 3, {3}), 3) << "no longer after min_tokens";
}

TEST(Sampler, BadLogitsFailThisSequenceOnly) {
  auto state = StateWith([](auto&) {});
  Sampler sampler;
  std::vector<float> nan = {1, NAN, 2};
  EXPECT_EQ(sampler.Sample(nan, 1, state, {}).status().code(), StatusCode::kInternal);
  std::vector<float> none(3, -INFINITY);
  EXPECT_EQ(sampler.Sample(none, 1, state, {}).status().code(), StatusCode::kInternal);
  EXPECT_EQ(Pick({1, 2, INFINITY}, state), 2);
}

TEST(Sampler, MasksThatLeaveNothingAreNoFailure) {
  Sampler sampler;
  const auto left = [&sampler](SamplingState state) {
    std::vector<float> logits = {1, 2, 3, 4};
    const auto choice = sampler.Sample(logits, 2, state, std::vector<TokenId>{3});
    return choice.ok() ? choice->token : IsNoTokenLeft(choice.status()) ? -1 : -2;
  };
  const auto with = [](const std::function<void(SamplingParams&)>& change) {
    auto state = StateWith(change, 1, {0});
    state.Record(1, std::vector<TokenId>{1});
    return state;
  };
  EXPECT_EQ(left(with([](auto& p) { p.allowed_token_ids = {3}, p.min_tokens = 5; })), -1);
  EXPECT_EQ(left(with([](auto& p) { p.allowed_token_ids = {2}, p.bad_words = {{1, 2}}; })), -1);
  EXPECT_EQ(left(with([](auto& p) {
              p.allowed_token_ids = {2}, p.stop_token_ids = {2}, p.min_tokens = 5;
            })),
            -1);
  EXPECT_EQ(left(with([](auto& p) { p.bad_words = {{0}, {1}, {2}}, p.min_tokens = 5; })), -1);
  EXPECT_EQ(left(with([](auto& p) {
              p.allowed_token_ids = {2}, p.logit_bias = {{2, -100.f}};
            })),
            2)
      << "a bias is no ban";
}

TEST(Sampler, PenaltiesNeitherBanNorBreak) {
  for (const double repetition : {1e-300, 1e-40, 100.0}) {
    auto state = StateWith(
        [repetition](auto& p) {
          p.temperature = 0, p.repetition_penalty = repetition, p.presence_penalty = 2;
          p.allowed_token_ids = {1, 2};
        },
        1, {0});
    state.Record(1, std::vector<TokenId>{0, 1, 2});
    EXPECT_GE(Pick({3, 3e38F, -3e38F, 0}, state, 4), 1) << repetition;
  }
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  auto state = StateWith([](auto& p) {
    p.temperature = 0, p.logprobs = 2, p.logit_bias = {{0, 100.f}};
  });
  std::vector<float> logits = {std::log(1.f), std::log(2.f), std::log(5.f), std::log(2.f)};
  Sampler sampler;
  auto choice = sampler.Sample(logits, 1, state, {});
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->token, 0);
  EXPECT_NEAR(choice->logprobs->chosen.logprob, std::log(0.1), 1e-6);
  EXPECT_EQ(choice->logprobs->chosen.rank, 4);
  ASSERT_EQ(choice->logprobs->top.size(), 2u);
  EXPECT_EQ(choice->logprobs->top[0].token, 2);
  EXPECT_NEAR(choice->logprobs->top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(choice->logprobs->top[1].token, 1);
}

TEST(Sampler, AllowedTokensAreTheOnlyOnes) {
  const std::vector<float> logits = {5, 1, 5, 1};
  const auto drawn = Frequencies(logits, [](auto& p) { p.allowed_token_ids = {1, 3, 3}; });
  EXPECT_EQ(drawn.size(), 2u);
  EXPECT_NEAR(drawn.at(1), 0.5, 0.02);
}

TEST(Sampler, BadWordsNeverEnd) {
  auto params = std::make_shared<SamplingParams>();
  params->temperature = 0;
  params->bad_words = {{1}, {2, 3}, {3, 3, 0}};
  const auto prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{2, 3, 3});
  SamplingState state({SequenceId(1), params, 1, prompt});
  const auto next = [&](int position) {
    std::vector<float> logits = {4, 9, 3, 5};
    return Sampler().Sample(logits, position, state, {})->token;
  };
  EXPECT_EQ(next(3), 3) << "1 is banned; the prompt does not begin a word";
  state.Record(3, std::vector<TokenId>{2});
  EXPECT_EQ(next(4), 0) << "3 would complete 2, 3";
  state.Record(4, std::vector<TokenId>{3});
  state.Record(5, std::vector<TokenId>{3});
  EXPECT_EQ(next(6), 3) << "0 would complete 3, 3, 0";
  EXPECT_FALSE(NeedsTokenOnly(state, 6));
}

TEST(Sampler, LogprobsOfGivenTokensFollowTheLikeliest) {
  const std::vector<float> logits = {1, 4, 3, 2};
  const auto all = LogprobsAt(logits, 1, 4);
  const auto some = LogprobsAt(logits, 1, 1, std::vector<TokenId>{0, 2});
  ASSERT_EQ(some->top.size(), 3u);
  EXPECT_EQ(some->top[0].token, 1);
  EXPECT_EQ(some->top[1].token, 0);
  EXPECT_EQ(some->top[1].rank, 4);
  EXPECT_EQ(some->top[1].logprob, all->top[3].logprob);
  EXPECT_EQ(some->top[2].rank, 2);
}

TEST(Sampler, ABeamOffersEnoughThatDoNotStopIt) {
  auto params = std::make_shared<SamplingParams>();
  params->temperature = 0;
  params->beam_search = true;
  params->n = 2;
  params->stop_token_ids = {3};
  const auto prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{0});
  SamplingState state({SequenceId(1), params, 1, prompt});
  std::vector<float> logits = {1, 9, 5, 7, 8};
  const auto choice = Sampler().Sample(logits, 1, state, std::vector<TokenId>{4});
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->token, 1);
  std::vector<TokenId> offered;
  for (const TokenLogprob& c : choice->logprobs->top) offered.push_back(c.token);
  EXPECT_EQ(offered, (std::vector<TokenId>{1, 4, 3, 2}));
  EXPECT_FALSE(NeedsTokenOnly(state, 1));
  std::vector<float> broken = {1, NAN, 0, 0, 0};
  EXPECT_FALSE(Sampler().Sample(broken, 1, state, {}).ok());
}

// Allows one token after each output: its length, and EOS (token 9) after three.
class CountingGrammar : public GrammarSource {
 public:
  std::unique_ptr<TokenMatcher> MatcherOf(const std::string&) override {
    return std::make_unique<Matcher>();
  }

 private:
  class Matcher : public TokenMatcher {
    Result<std::span<const uint32_t>> Allowed(std::span<const TokenId> output) override {
      const size_t next = output.size() < 3 ? output.size() : 9;
      word_ = uint32_t{1} << next;
      return std::span<const uint32_t>(&word_, 1);
    }
    bool Takes(std::span<const TokenId> output, TokenId next, bool /*ends*/) override {
      return InMask(*Allowed(output), next);
    }
    uint32_t word_ = 0;
  };
};

class ConstrainedSampler : public testing::Test {
 protected:
  SamplingState State(const std::function<void(SamplingParams&)>& change = [](auto&) {}) {
    auto params = std::make_shared<SamplingParams>();
    params->grammar = GrammarOf(GrammarKind::kRegex, "a");
    change(*params);
    return SamplingState({SequenceId(1), params, 1,
                          std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{5})},
                         &grammar_);
  }
  static constexpr TokenId kEnd = 9;

  CountingGrammar grammar_;
  const std::vector<float> logits_ = std::vector<float>(40, 1.0f);
};

TEST_F(ConstrainedSampler, TakesWhatTheGrammarAllowsAfterTheTokensSoFar) {
  SamplingState state = State();
  for (const TokenId token : {0, 1, 2, kEnd}) {
    const int position = 1 + (token == kEnd ? 3 : token);
    EXPECT_EQ(Pick(logits_, state, position, {kEnd}), token);
    state.Record(position, std::vector<TokenId>{token});
  }
  EXPECT_EQ(Pick(logits_, state, 2, {kEnd}), 1) << "a replay goes back";
}

TEST_F(ConstrainedSampler, TheEndOfTheGrammarPrecedesMinTokens) {
  SamplingState state = State([](auto& p) { p.min_tokens = 8; });
  state.Record(1, std::vector<TokenId>{0, 1, 2});
  EXPECT_EQ(Pick(logits_, state, 4, {kEnd}), kEnd);
}

TEST_F(ConstrainedSampler, ABiasThatBansWhatIsAllowedLeavesNoToken) {
  SamplingState state = State([](auto& p) { p.allowed_token_ids = {7}; });
  std::vector<float> logits = logits_;
  EXPECT_TRUE(IsNoTokenLeft(Sampler().Sample(logits, 1, state, {}).status()));
}

TEST_F(ConstrainedSampler, AnAnswerThatMatchesEndsWhereNothingElseIsLeft) {
  SamplingState state = State([](auto& p) { p.allowed_token_ids = {0, 1, 2}; });
  state.Record(1, std::vector<TokenId>{0, 1, 2});
  EXPECT_EQ(Pick(logits_, state, 4, {kEnd}), kEnd);
}

TEST_F(ConstrainedSampler, AStageWithoutVocabularyFailsTheSequence) {
  auto params = std::make_shared<SamplingParams>();
  params->grammar = GrammarOf(GrammarKind::kRegex, "a");
  SamplingState state({SequenceId(1), params, 1,
                       std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{5})});
  std::vector<float> logits = logits_;
  EXPECT_EQ(Sampler().Sample(logits, 1, state, {}).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_FALSE(NeedsTokenOnly(state, 1));
}

}  // namespace
}  // namespace millrace::stage
