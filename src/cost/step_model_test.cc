#include "cost/step_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"

namespace millrace::cost {
namespace {

BatchShape RandomBatch(Rng& rng) {
  BatchShape batch;
  const auto prompts = static_cast<int32_t>(rng.Between(0, 4));
  for (int i = 0; i < prompts; ++i) {
    const int64_t start = rng.Between(0, 500), end = start + rng.Between(1, 700);
    batch.prefill_tokens += end - start;
    batch.prefill_tokens_squared += end * end - start * start;
    ++batch.prefill_sequences;
  }
  batch.decode_sequences = static_cast<int32_t>(rng.Between(0, 64));
  batch.decode_context = batch.decode_sequences * rng.Between(1, 1000);
  return batch;
}

StepModel Planted() {
  auto model =
      StepModel::Create({.tokens = {0, 16, 256}, .sequences = {0}}, {.fixed_s = 5e-3,
                                                                     .prefill_squared_s = 2e-9,
                                                                     .decode_context_s = 3e-7,
                                                                     .token_s = {1e-5, 8e-5, 5e-5},
                                                                     .sequence_s = {2e-5}});
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return std::move(model).value();
}

TEST(StepModelTest, AddsItsTermsUp) {
  const StepModel model = Planted();
  EXPECT_EQ(model.Seconds({}), 0);
  EXPECT_NEAR(model.Seconds({.decode_sequences = 20, .decode_context = 1000}),
              5e-3 + 1000 * 3e-7 + 16 * 1e-5 + 4 * 8e-5 + 20 * 2e-5, 1e-15);
  EXPECT_NEAR(model.Seconds(
                  {.prefill_tokens = 300, .prefill_tokens_squared = 90000, .prefill_sequences = 1}),
              5e-3 + 90000 * 2e-9 + 16 * 1e-5 + 240 * 8e-5 + 44 * 5e-5 + 2e-5, 1e-15);
}

TEST(StepModelTest, MoreWorkNeverCostsLess) {
  const StepModel model = Planted();
  Rng rng(7);
  for (int i = 0; i < 1000; ++i) {
    const BatchShape batch = RandomBatch(rng);
    if (batch.empty()) continue;
    BatchShape more = batch;
    more.prefill_tokens += 3;
    more.prefill_tokens_squared += 100;
    more.decode_context += 5;
    EXPECT_GT(model.Seconds(more), model.Seconds(batch));
  }
}

TEST(StepModelTest, TheFitFindsThePlantedModel) {
  const StepModel planted = Planted();
  Rng rng(11);
  std::vector<StepSample> samples, held_out;
  for (int i = 0; i < 400; ++i) {
    const BatchShape batch = RandomBatch(rng);
    if (batch.empty()) continue;
    auto& into = i % 2 == 0 ? samples : held_out;
    into.push_back({batch, planted.Seconds(batch)});
  }
  const auto fit = FitStepModel(samples, planted.knots());
  ASSERT_TRUE(fit.ok()) << fit.status().ToString();
  EXPECT_LT(fit->errors.max, 1e-6);
  EXPECT_LT(ErrorsOn(fit->model, held_out).max, 1e-6);
  const StepCoefficients& found = fit->model.coefficients();
  EXPECT_NEAR(found.fixed_s, 5e-3, 1e-7);
  EXPECT_NEAR(found.decode_context_s, 3e-7, 1e-12);
  EXPECT_NEAR(found.token_s[1], 8e-5, 1e-9);
}

TEST(StepModelTest, NoiseOfAFewPerCentGivesErrorsOfAFewPerCent) {
  const StepModel planted = Planted();
  Rng rng(3);
  std::vector<StepSample> samples;
  for (int i = 0; i < 300; ++i) {
    const BatchShape batch = RandomBatch(rng);
    if (batch.empty()) continue;
    samples.push_back({batch, planted.Seconds(batch) * (0.97 + 0.06 * rng.Uniform())});
  }
  const auto fit = FitStepModel(samples, planted.knots());
  ASSERT_TRUE(fit.ok());
  EXPECT_LT(fit->errors.max, 0.05);
  for (const StepSample& sample : samples) {
    EXPECT_NEAR(fit->model.Seconds(sample.batch) / planted.Seconds(sample.batch), 1, 0.02);
  }
}

TEST(StepModelTest, WrongModelsAreRefused) {
  const auto create = [](StepKnots knots, StepCoefficients c) {
    return StepModel::Create(std::move(knots), std::move(c)).ok();
  };
  const StepKnots one{.tokens = {0}, .sequences = {}};
  EXPECT_TRUE(create(one, {.token_s = {1}}));
  EXPECT_FALSE(create(one, {.token_s = {1, 2}}));
  EXPECT_FALSE(create(one, {.token_s = {-1}}));
  EXPECT_FALSE(create(one, {.fixed_s = std::nan(""), .token_s = {1}}));
  EXPECT_FALSE(create({.tokens = {1}, .sequences = {}}, {.token_s = {1}}));
  EXPECT_FALSE(create({.tokens = {0, 5, 5}, .sequences = {}}, {.token_s = {1, 1, 1}}));
  EXPECT_FALSE(FitStepModel({}, one).ok());
}

}  // namespace
}  // namespace millrace::cost
