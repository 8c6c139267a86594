#include "core/sampling_params.h"

#include <gtest/gtest.h>

#include <boost/pfr.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>

#include "core/output_grammar.h"

namespace millrace {
namespace {

constexpr int kVocab = 100;

std::string ErrorOf(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  return Validate(params, kVocab).message();
}

TEST(SamplingParams, DefaultsAreValid) {
  EXPECT_EQ(ErrorOf([](auto&) {}), "");
}

TEST(SamplingParams, EachRangeIsNamedWithTheValue) {
  EXPECT_EQ(ErrorOf([](auto& p) { p.n = 0; }), "n must be in [1, 128], got 0");
  EXPECT_EQ(ErrorOf([](auto& p) { p.n = 1'000'000; }), "n must be in [1, 128], got 1000000");
  EXPECT_EQ(ErrorOf([](auto& p) { p.max_tokens = 0; }), "max_tokens must be at least 1, got 0");
  EXPECT_EQ(ErrorOf([](auto& p) { p.temperature = -0.1; }),
            "temperature must be in [0, 100], got -0.1");
  EXPECT_EQ(ErrorOf([](auto& p) { p.temperature = std::nan(""); }),
            "temperature must be in [0, 100], got nan");
  EXPECT_EQ(ErrorOf([](auto& p) { p.top_p = 0; }), "top_p must be in (0, 1], got 0");
  EXPECT_EQ(ErrorOf([](auto& p) { p.top_k = -1; }), "top_k must be at least 0 (0: all), got -1");
  EXPECT_EQ(ErrorOf([](auto& p) { p.min_p = 1.5; }), "min_p must be in [0, 1], got 1.5");
  EXPECT_EQ(ErrorOf([](auto& p) { p.logprobs = 21; }), "logprobs must be in [0, 20], got 21");
  EXPECT_EQ(ErrorOf([](auto& p) { p.presence_penalty = 3; }),
            "presence_penalty must be in [-2, 2], got 3");
  EXPECT_EQ(ErrorOf([](auto& p) { p.repetition_penalty = 0; }),
            "repetition_penalty must be in (0, 100], got 0");
}

TEST(SamplingParams, TokenIdsAreCheckedAgainstTheVocabulary) {
  for (TokenId bad : {-1, kVocab, std::numeric_limits<TokenId>::max()}) {
    EXPECT_NE(ErrorOf([&](auto& p) { p.logit_bias = {{bad, 1.0f}}; }), "");
    EXPECT_NE(ErrorOf([&](auto& p) { p.stop_token_ids = {bad}; }), "");
  }
  EXPECT_EQ(ErrorOf([](auto& p) { p.stop_token_ids = {0, kVocab - 1}; }), "");
}

TEST(SamplingParams, StopStringsAreBounded) {
  EXPECT_NE(ErrorOf([](auto& p) { p.stop = {""}; }), "");
  EXPECT_NE(ErrorOf([](auto& p) { p.stop.assign(kStopStringsMax + 1, "x"); }), "");
  EXPECT_NE(ErrorOf([](auto& p) { p.stop = {std::string(kStopStringBytesMax + 1, 'x')}; }), "");
}

// ForEachField does not compile when a field is missing in its binding. This finds one that is
// bound and not visited.
TEST(SamplingParams, EveryFieldIsVisitedOnce) {
  SamplingParams params;
  std::set<std::string> names;
  std::set<const void*> values;
  ForEachField(params, [&](const SamplingField& field, const auto& value) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    EXPECT_TRUE(values.insert(&value).second) << field.name;
  });
  EXPECT_EQ(values.size(), boost::pfr::tuple_size_v<SamplingParams>);
}

TEST(SamplingParams, Grammars) {
  SamplingParams params;
  params.grammar = GrammarOf(GrammarKind::kChoice, R"(["a"])");
  EXPECT_TRUE(Validate(params, 10).ok());
  params.ignore_eos = true;
  EXPECT_NE(Validate(params, 10).message().find("ignore_eos"), std::string::npos);
  params.ignore_eos = false;
  for (const std::string& bad : {std::string("regex:"), std::string("yaml:a"), std::string("regex"),
                                 "regex:" + std::string(kGrammarBytesMax, 'a')}) {
    params.grammar = bad;
    EXPECT_EQ(Validate(params, 10).code(), StatusCode::kInvalidArgument) << bad.substr(0, 20);
  }
}

TEST(SamplingParams, AVectorComesAlone) {
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) {
    EXPECT_EQ(ErrorOf([&](auto& p) { p.pooling = pooling; }), "");
    const auto with = [&](auto change) {
      return ErrorOf([&](auto& p) {
        p.pooling = pooling;
        change(p);
      });
    };
    EXPECT_NE(with([](auto& p) { p.n = 2; }), "");
    EXPECT_NE(with([](auto& p) { p.logprobs = 0; }), "");
    EXPECT_NE(with([](auto& p) { p.prompt_logprobs = 0; }), "");
    EXPECT_NE(with([](auto& p) { p.grammar = GrammarOf(GrammarKind::kRegex, "a"); }), "");
  }
  EXPECT_NE(ErrorOf([](auto& p) { p.pooling = static_cast<Pooling>(3); }), "");
}

TEST(SamplingParams, APromptForAVectorMayHaveTheModelsLength) {
  SamplingParams params;
  EXPECT_EQ(OutputLimit(params, 9, 10), 1);
  EXPECT_EQ(OutputLimit(params, 10, 10), std::nullopt);
  params.pooling = Pooling::kLast;
  EXPECT_EQ(OutputLimit(params, 3, 10), 1);
  EXPECT_EQ(OutputLimit(params, 10, 10), 1);
  EXPECT_EQ(OutputLimit(params, 11, 10), std::nullopt);
}

TEST(SamplingParams, SequenceSeedsDifferAndTheFirstIsTheRequests) {
  EXPECT_EQ(SequenceSeed(42, 0), 42u);
  EXPECT_NE(SequenceSeed(42, 1), SequenceSeed(42, 2));
}

}  // namespace
}  // namespace millrace
