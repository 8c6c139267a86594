#include "cost/distserve_cost.h"

#include <gtest/gtest.h>

#include "base/testing/source_path.h"

namespace millrace::cost {
namespace {

const std::string kFolder = SourcePath("src/cost/testdata/distserve/");

DistServeCoefficients Published(const std::string& model, int tp) {
  const auto profile = DistServeProfile::Load(kFolder + "profiler-a100-80g.distserve.json");
  EXPECT_TRUE(profile.ok()) << profile.status().ToString();
  return profile->Find(model, tp).value();
}

BatchShape Prompt(int64_t length) {
  return {
      .prefill_tokens = length, .prefill_tokens_squared = length * length, .prefill_sequences = 1};
}

BatchShape Decode(int32_t sequences, int64_t context) {
  return {.decode_sequences = sequences, .decode_context = context};
}

// The released simulator's result for one request of 512 prompt and 10 output tokens.
TEST(DistServeCostTest, OneRequestTakesWhatTheReleasedSimulatorSays) {
  const DistServeCost cost(Published("facebook/opt-13b", 1), DistServeStage::Released(1, true));
  EXPECT_NEAR(cost.Seconds(Prompt(512)) * 1e3, 75.199881, 1e-6);
  double decode = 0;
  for (int i = 1; i <= 10; ++i) decode += cost.Seconds(Decode(1, 512 + i));
  EXPECT_NEAR(decode / 10 * 1e3, 22.349299, 1e-6);
}

// The physical reading of the published coefficients: prefill(512) in ms.
TEST(DistServeCostTest, PrefillOf512TokensMatchesThePublishedColumn) {
  const struct {
    const char* model;
    int tp;
    double ms;
  } rows[] = {{"opt-13b", 1, 72.1},         {"opt-13b", 2, 50.5},  {"OPT-13B", 4, 31.7},
              {"opt-66b", 2, 189.4},        {"opt-66b", 3, 136.4}, {"opt-66b", 4, 109.1},
              {"facebook/opt-66b", 8, 81.0}};
  for (const auto& row : rows) {
    const DistServeCost cost(Published(row.model, row.tp));
    EXPECT_NEAR(cost.Seconds(Prompt(512)) * 1e3, row.ms, 0.051) << row.model << " " << row.tp;
  }
}

TEST(DistServeCostTest, DecodeChangesItsCoefficientsAtTheThreshold) {
  const auto c = Published("facebook/opt-13b", 1);
  const DistServeCost cost(c);
  const auto formula = [](const std::array<double, 3>& k, double context, double sequences) {
    return (k[0] + k[1] * context + k[2] * sequences) * 1e-3;
  };
  EXPECT_DOUBLE_EQ(cost.Seconds(Decode(94, 9400)), formula(c.decode_small, 9400, 94));
  EXPECT_DOUBLE_EQ(cost.Seconds(Decode(95, 9500)), formula(c.decode_large, 9500, 95));
}

TEST(DistServeCostTest, StagesShareTheModelAndOnlyTheFirstPaysTheStep) {
  const auto c = Published("facebook/opt-66b", 2);
  const double whole = DistServeCost(c).Seconds(Prompt(1000));
  EXPECT_DOUBLE_EQ(DistServeCost(c, {.pipeline_parallel = 4}).Seconds(Prompt(1000)), whole / 4);
  const DistServeCost first(c, DistServeStage::Released(2, true));
  const DistServeCost second(c, DistServeStage::Released(2, false));
  EXPECT_NEAR(second.Seconds(Prompt(1000)), whole / 2 + 0.002, 1e-12);
  EXPECT_NEAR(first.Seconds(Prompt(1000)) - second.Seconds(Prompt(1000)), 0.0021, 1e-12);
  EXPECT_NEAR(first.Seconds(Decode(2, 502)) - second.Seconds(Decode(2, 502)), 0.00205, 1e-12);
}

TEST(DistServeCostTest, AnEmptyBatchIsFreeAndNoBatchIsNegative) {
  const auto profile = DistServeProfile::Load(kFolder + "vllm-opt66b-tp2.json");
  ASSERT_TRUE(profile.ok());
  const auto c = profile->Find("opt-66b", 2).value();
  ASSERT_LT(c.prefill[2], 0);
  const DistServeCost cost(c);
  EXPECT_EQ(cost.Seconds({}), 0);
  EXPECT_EQ(cost.Seconds(Prompt(1 << 20)), 0);
  EXPECT_GT(cost.Seconds(Prompt(2048)), 0);
}

TEST(DistServeCostTest, AMixedBatchCostsMoreThanEitherPart) {
  const DistServeCost cost(Published("opt-13b", 2));
  for (const int64_t prompt : {1, 64, 512, 2048}) {
    for (const int32_t decodes : {1, 50, 95, 128}) {
      BatchShape both = Prompt(prompt);
      both.decode_sequences = decodes;
      both.decode_context = int64_t{decodes} * 700;
      EXPECT_GT(cost.Seconds(both), cost.Seconds(Prompt(prompt)));
      EXPECT_GE(cost.Seconds(both), cost.Seconds(Decode(decodes, int64_t{decodes} * 700)));
    }
  }
}

TEST(DistServeProfileTest, AnUnknownModelNamesWhatThereIs) {
  const auto profile = DistServeProfile::Load(kFolder + "vllm-opt66b-tp2.json");
  ASSERT_TRUE(profile.ok());
  const auto missing = profile->Find("opt-175b", 4);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.status().code(), StatusCode::kNotFound);
  EXPECT_NE(missing.status().message().find("facebook/opt-66b TP2"), std::string::npos);
}

TEST(DistServeProfileTest, AWrongFileIsOneLineWithThePlace) {
  const auto message = [](const char* text) {
    const auto profile = DistServeProfile::Parse(text, "p.json");
    EXPECT_FALSE(profile.ok()) << text;
    const std::string m = profile.status().message();
    EXPECT_EQ(m.rfind("p.json", 0), 0u) << m;
    EXPECT_EQ(m.find('\n'), std::string::npos) << m;
    return m;
  };
  message("");
  message("[]");
  message("{}");
  message(R"({"m": 3})");
  EXPECT_NE(message(R"({"m": {"two": {}}})").find("TP degree"), std::string::npos);
  EXPECT_NE(message(R"({"m": {"0": {}}})").find("TP degree"), std::string::npos);
  EXPECT_NE(message(R"({"m": {"1": {"prefill": [1, 2]}}})").find("3 numbers"), std::string::npos);
  EXPECT_NE(message(R"({"m": {"1": {"prefill": [1, 2, 1e300]}}})").find("[2]"), std::string::npos);
  EXPECT_NE(message(R"({"m": {"1": {"decoding_large_small_bs_threshold": 0}}})").find("[1, "),
            std::string::npos);
}

}  // namespace
}  // namespace millrace::cost
