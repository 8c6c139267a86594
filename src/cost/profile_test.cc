#include "cost/profile.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/rng.h"

namespace millrace::cost {
namespace {

const StepKnots kKnots{.tokens = {0, 16, 128}, .sequences = {0}};

double LayersSeconds(const BatchShape& b) {
  return 1e-3 + 2e-5 * static_cast<double>(b.tokens()) +
         1e-9 * static_cast<double>(b.prefill_tokens_squared) +
         4e-8 * static_cast<double>(b.decode_context);
}
double StepSeconds(const BatchShape& b) {
  return LayersSeconds(b) + 5e-4 + 3e-5 * (b.prefill_sequences + b.decode_sequences);
}

Profile Measured() {
  Profile profile{.model = "demo",
                  .architecture = "LlamaForCausalLM",
                  .dtype = "bfloat16",
                  .num_layers = 8,
                  .device = "cpu",
                  .numeric_class = "cpu-bits-3",
                  .threads = 2};
  Rng rng(5);
  for (int i = 0; i < 80; ++i) {
    BatchShape batch;
    if (i % 3 != 0) {
      const int64_t n = rng.Between(1, 600);
      batch.prefill_tokens = n;
      batch.prefill_tokens_squared = n * n;
      batch.prefill_sequences = 1;
    }
    if (i % 3 != 1) {
      batch.decode_sequences = static_cast<int32_t>(rng.Between(1, 64));
      batch.decode_context = batch.decode_sequences * rng.Between(1, 900);
    }
    profile.samples.push_back({batch, StepSeconds(batch), LayersSeconds(batch)});
  }
  profile.memory_copy_bytes_per_s = 9e9;
  profile.loopback = LinkFit{{2e-5, 3e9}, {.rows = 5}};
  profile.front_end =
      FrontEnd{.request_s = 3e-3, .step_s = 1e-4, .sequence_s = 2e-5, .arrival_s = 4e-4};
  profile.pace = *Pace::Create({{1, 0.01, 0.011}, {300, 0.02, 0.05}});
  return profile;
}

Profile Fitted() {
  auto profile = FitProfile(Measured(), kKnots);
  EXPECT_TRUE(profile.ok()) << profile.status().ToString();
  return std::move(profile).value();
}

TEST(ProfileTest, TheFitExplainsItsSamples) {
  const Profile profile = Fitted();
  EXPECT_LT(profile.step.errors.max, 1e-6);
  EXPECT_LT(profile.layers.errors.max, 1e-6);
  Profile few = Measured();
  few.samples.resize(10);
  EXPECT_FALSE(FitProfile(std::move(few), kKnots).ok());
}

TEST(ProfileTest, StepsBeyondTheMeasuredOnesStillCost) {
  const auto profile = FitProfile(Measured(), {.tokens = {0, 16, 4096}, .sequences = {0}});
  ASSERT_TRUE(profile.ok());
  EXPECT_EQ(profile->step.model.knots().tokens, (std::vector<double>{0, 16}));
  const BatchShape large = {
      .prefill_tokens = 9000, .prefill_tokens_squared = 81'000'000, .prefill_sequences = 1};
  EXPECT_NEAR(MeasuredCost(*profile).Seconds(large) / StepSeconds(large), 1, 1e-3);
}

TEST(ProfileTest, ComesBackFromItsFile) {
  const Profile profile = Fitted();
  const std::string text = FormatProfile(profile);
  const auto again = ParseProfile(text, "p.json");
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(FormatProfile(*again), text);
  EXPECT_EQ(again->model, "demo");
  EXPECT_EQ(again->num_layers, 8);
  EXPECT_EQ(again->samples.size(), profile.samples.size());
  EXPECT_EQ(again->loopback->link.bytes_per_s, 3e9);
  EXPECT_EQ(again->front_end->request_s, 3e-3);
  EXPECT_EQ(again->front_end->step_s, 1e-4);
  EXPECT_EQ(again->front_end->sequence_s, 2e-5);
  EXPECT_EQ(again->front_end->arrival_s, 4e-4);
  ASSERT_EQ(again->pace->stretches().size(), 2u);
  EXPECT_EQ(again->pace->stretches()[1].took_s, 0.05);
  const MeasuredCost before(profile), after(*again);
  for (const ProfileSample& sample : profile.samples) {
    EXPECT_EQ(before.Seconds(sample.batch), after.Seconds(sample.batch));
  }
}

TEST(ProfileTest, StagesAddUpToTheWholeAndTheLastDoesTheRest) {
  const Profile profile = Fitted();
  const BatchShape batch = {.prefill_tokens = 200,
                            .prefill_tokens_squared = 40000,
                            .prefill_sequences = 1,
                            .decode_sequences = 10,
                            .decode_context = 3000};
  const double whole = MeasuredCost(profile).Seconds(batch);
  EXPECT_NEAR(whole, StepSeconds(batch), 1e-7);
  const double first = MeasuredCost(profile, {0, 6}).Seconds(batch);
  const double last = MeasuredCost(profile, {6, 8}).Seconds(batch);
  EXPECT_NEAR(first, LayersSeconds(batch) * 6 / 8, 1e-7);
  EXPECT_NEAR(first + last, whole, 1e-9);
  EXPECT_EQ(MeasuredCost(profile).Seconds({}), 0);
}

TEST(ProfileTest, SaturationIsWhereBatchingStopsGaining) {
  // 10 ms for up to 100 tokens, bound by the weights, then 0.1 ms per token. At t tokens the rate
  // is t / (10 + 0.1 t) per ms; it reaches nine tenths of its best at 2048 (9.53) at t >= 604.6.
  const auto cost =
      StepModel::Create({.tokens = {0}, .sequences = {}}, {.fixed_s = 0.01, .token_s = {1e-4}});
  ASSERT_TRUE(cost.ok());
  EXPECT_EQ(SaturationTokens(*cost, 2048), 608);
  EXPECT_EQ(SaturationTokens(*cost, 8), 8);
}

TEST(ProfileTest, ReadsAnOlderFileWithoutTimesPerSequence) {
  Json old = Json::parse(FormatProfile(Fitted()));
  old["front_end"] = {{"request_s", 3e-3}, {"step_s", 1e-4}};
  const auto profile = ParseProfile(old.dump(), "p.json");
  ASSERT_TRUE(profile.ok()) << profile.status().ToString();
  EXPECT_EQ(profile->front_end->step_s, 1e-4);
  EXPECT_EQ(profile->front_end->sequence_s, 0);
  EXPECT_EQ(profile->front_end->arrival_s, 0);
}

TEST(ProfileTest, AWrongFileNamesTheKey) {
  const Json good = Json::parse(FormatProfile(Fitted()));
  const auto message = [&](const char* pointer, Json value) {
    Json bad = good;
    bad[Json::json_pointer(pointer)] = std::move(value);
    const auto profile = ParseProfile(bad.dump(), "p.json");
    EXPECT_FALSE(profile.ok()) << pointer;
    return profile.status().message();
  };
  EXPECT_EQ(message("/format", "x"), "p.json: \"format\" must be \"millrace-profile\"");
  EXPECT_EQ(message("/version", 2), "p.json: \"version\" must be an integer in [1, 1]");
  EXPECT_EQ(message("/model/num_layers", 0),
            "p.json, model: \"num_layers\" must be an integer in [1, 4096]");
  EXPECT_EQ(message("/step/fixed_s", -1),
            "p.json, step: \"fixed_s\" must be a number in [0, 1e+06]");
  EXPECT_NE(message("/layers/token_knots", Json::array({0, 5, 5})).find("must begin at 0"),
            std::string::npos);
  EXPECT_NE(message("/layers/token_s", Json::array({1})).find("one slope per knot"),
            std::string::npos);
  EXPECT_EQ(message("/samples/0", Json::array({1, 2})),
            "p.json: \"samples\" row 1: five counts and two times in seconds");
  EXPECT_EQ(message("/pace/1", Json::array({1})),
            "p.json: \"pace\" row 2: tokens and two times in seconds");
  EXPECT_NE(message("/pace/1", Json::array({1, 0, 1})).find("\"pace\" a stretch of 0 s"),
            std::string::npos);
  EXPECT_EQ(message("/front_end/step_s", "x"),
            "p.json, front_end: \"step_s\" must be a number in [0, 1e+06]");
  EXPECT_NE(message("/samples/1/0", uint64_t{1} << 63).find("row 2"), std::string::npos);
  EXPECT_FALSE(ParseProfile("{", "p.json").ok());
  EXPECT_FALSE(ParseProfile("[]", "p.json").ok());
}

TEST(ProfileTest, OneLineIsTheSameCost) {
  const Profile profile = Fitted();
  const std::string line = FormatProfileLine(profile);
  EXPECT_LT(line.size(), 4000u);
  for (const char c : line) EXPECT_TRUE(c >= ' ' && c <= '~') << static_cast<int>(c);
  const auto again = ParseProfile(line, "p.json");
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_TRUE(again->samples.empty());
  EXPECT_FALSE(again->pace);
  EXPECT_EQ(again->saturation_tokens, profile.saturation_tokens);
  EXPECT_EQ(again->front_end->step_s, profile.front_end->step_s);
  for (const ProfileSample& sample : profile.samples) {
    EXPECT_EQ(MeasuredCost(*again, {2, 5}).Seconds(sample.batch),
              MeasuredCost(profile, {2, 5}).Seconds(sample.batch));
  }
  EXPECT_EQ(FormatProfileLine(*again), line);
}

TEST(ProfileTest, RatesAreOfTheWholeModel) {
  const Profile profile = Fitted();
  const ProfileRates rates = RatesOf(profile);
  const int64_t tokens = profile.saturation_tokens;
  const double prompt_s = StepSeconds({.prefill_tokens = tokens,
                                       .prefill_tokens_squared = tokens * tokens,
                                       .prefill_sequences = 1});
  EXPECT_NEAR(rates.prefill_tokens_per_s, static_cast<double>(tokens) / prompt_s,
              1e-3 * rates.prefill_tokens_per_s);
  const double decode_s = StepSeconds({.decode_sequences = 8, .decode_context = 8 * 256});
  EXPECT_NEAR(rates.decode_tokens_per_s, 8 / decode_s, 1e-3 * rates.decode_tokens_per_s);
}

TEST(ProfileTest, TimesThatNoMachineHasAreNotPlausible) {
  EXPECT_TRUE(CheckPlausible(Fitted()).ok());
  const auto with = [](double fixed_s, StepFit Profile::*fit) {
    Profile profile = Fitted();
    StepCoefficients c{.fixed_s = fixed_s, .token_s = {0}, .sequence_s = {0}};
    (profile.*fit).model = *StepModel::Create({}, c);
    return CheckPlausible(profile);
  };
  for (StepFit Profile::*fit : {&Profile::step, &Profile::layers}) {
    EXPECT_TRUE(with(1e-3, fit).ok());
    EXPECT_FALSE(with(0, fit).ok());
    EXPECT_FALSE(with(1e-9, fit).ok());
    EXPECT_FALSE(with(1e5, fit).ok());
  }
}

}  // namespace
}  // namespace millrace::cost
