#include "cost/profile.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "apps/profile/front_end.h"
#include "model/make_model.h"
#include "ops/profile/grid.h"
#include "ops/profile/links.h"
#include "ops/profile/repeats.h"
#include "ops/profile/step_rig.h"
#include "ops/profile/testing/tiny_config.h"
#include "tensor/devices/make_device.h"

namespace millrace::apps {
namespace {

class GridTest : public testing::TestWithParam<ops::ProfileLimits> {};

TEST_P(GridTest, EveryBatchIsWithinSlotsAndLimits) {
  const ops::ProfileLimits limits = GetParam();
  const std::vector<int> slots = ops::SlotTokens(limits);
  ASSERT_EQ(slots.size(), static_cast<size_t>(limits.max_sequences + ops::kPromptSlots));
  const auto grid = ops::ProfileGrid(limits);
  EXPECT_GE(grid.size(), 18u);  // twice the terms of the fit
  for (const ops::ProfileBatch& batch : grid) {
    std::set<int> used;
    int tokens = 0;
    for (const ops::ProfileChunk& chunk : batch.chunks) {
      EXPECT_TRUE(used.insert(chunk.slot).second);
      EXPECT_GE(chunk.count, 1);
      EXPECT_GE(chunk.start, 0);
      EXPECT_LE(chunk.start + chunk.count, slots.at(static_cast<size_t>(chunk.slot)));
      tokens += chunk.count;
    }
    EXPECT_LE(tokens, limits.max_tokens);
    EXPECT_LE(batch.chunks.size(), static_cast<size_t>(limits.max_sequences));
    EXPECT_EQ(batch.Shape().tokens(), tokens);
    EXPECT_FALSE(batch.Shape().empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Limits, GridTest,
                         testing::Values(ops::ProfileLimits{}, ops::ProfileLimits{64, 8, 128, 256},
                                         ops::ProfileLimits{4096, 256, 8192, 16384},
                                         ops::ProfileLimits{64, 4, 128, 128},
                                         ops::ProfileLimits{2048, 64, 512, 1024}));

TEST(GridTest, ShapesDescribeTheChunks) {
  const ops::ProfileBatch batch{{{0, 99, 1}, {1, 49, 1}, {8, 0, 20}, {9, 30, 10}}};
  const cost::BatchShape shape = batch.Shape();
  EXPECT_EQ(shape.decode_sequences, 2);
  EXPECT_EQ(shape.decode_context, 150);
  EXPECT_EQ(shape.prefill_sequences, 2);
  EXPECT_EQ(shape.prefill_tokens, 30);
  EXPECT_EQ(shape.prefill_tokens_squared, 400 + 40 * 40 - 30 * 30);
}

TEST(LinksTest, MemoryAndLoopbackAreMeasured) {
  const SteadyClock clock;
  EXPECT_GT(ops::MeasureMemoryCopy(3, clock), 1e6);
  const auto samples = ops::MeasureLoopback(5, clock);
  ASSERT_TRUE(samples.ok()) << samples.status().ToString();
  ASSERT_EQ(samples->size(), 5u);
  EXPECT_GT(samples->back().bytes, 100 * samples->front().bytes);
  EXPECT_GT(samples->back().seconds, samples->front().seconds);
}

TEST(RepeatsTest, TheMoreDisturbedHalfIsIgnored) {
  const ops::StepRig::Timing quiet{1.0, 0.8, 0.99}, similar{1.1, 0.9, 0.98}, busy{5, 4, 0.3};
  const ops::StepRig::Timing timing = ops::Summarise({busy, quiet, busy, similar});
  EXPECT_NEAR(timing.step_s, 1.05, 1e-12);
  EXPECT_NEAR(timing.layers_s, 0.85, 1e-12);
  EXPECT_EQ(ops::Summarise({busy}).step_s, 5);
}

TEST(Profile, AShortStepIsNoFasterInTheLongRunThanTheProcessorItHas) {
  // A third of a processor: every long step is interrupted, and one of four short ones.
  const ops::StepRig::Timing through{1e-3, 0.5e-3, 1}, held{9e-3, 8.5e-3, 1.0 / 9};
  const ops::StepRig::Timing slow{34e-3, 17e-3, 10.0 / 34};
  const auto steps =
      ops::InTheLongRun({{through, held, through, through}, {slow, slow, slow, slow}});
  const double stretch = (12e-3 + 4 * 34e-3) / (4e-3 + 4 * 10e-3);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_NEAR(steps[0].step_s, stretch * 1e-3, 1e-12);
  EXPECT_NEAR(steps[0].layers_s, stretch * 0.5e-3, 1e-12);
  EXPECT_NEAR(steps[1].step_s, stretch * 10e-3, 1e-12);
  EXPECT_NEAR(steps[1].layers_s, stretch * 5e-3, 1e-12);
  // A quiet machine: what was measured.
  EXPECT_NEAR(ops::InTheLongRun({{through, through}})[0].step_s, 1e-3, 1e-12);
}

// Every batch of the grid runs repeatedly on a tiny model, and the measurements give a profile that
// can be read back from its file.
TEST(StepRigTest, RunsTheWholeGridOnARealModel) {
  const std::string folder = testing::TempDir() + "/step_rig_model";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(model::MakeModel(ops::TinyConfig(2), folder, {}).ok());
  auto device = tensor::MakeDevice(tensor::kCpu, {.threads = 1});
  ASSERT_TRUE(device.ok());
  const ops::ProfileLimits limits{
      .max_tokens = 64, .max_sequences = 8, .max_context = 128, .context_tokens = 256};
  model::LoadOptions load;
  load.max_batched_tokens = limits.max_tokens;
  auto weights = model::Model::Load(folder, **device, load);
  ASSERT_TRUE(weights.ok()) << weights.status().ToString();
  stage::StageRunnerOptions options;
  options.num_blocks = ops::StepRig::BlocksFor(limits, options.block_size);
  auto runner = stage::StageRunner::Create(std::move(*device), std::move(*weights), options);
  ASSERT_TRUE(runner.ok()) << runner.status().ToString();
  const SteadyClock clock;
  auto rig = ops::StepRig::Create(std::move(*runner), limits, /*temperature=*/1, clock);
  ASSERT_TRUE(rig.ok()) << rig.status().ToString();
  cost::Profile measured{.num_layers = 2, .threads = 1};
  for (int round = 0; round < 2; ++round) {
    measured.samples.clear();
    for (const ops::ProfileBatch& batch : ops::ProfileGrid(limits)) {
      const auto timing = (*rig)->Run(batch);
      ASSERT_TRUE(timing.ok()) << timing.status().ToString();
      EXPECT_GT(timing->layers_s, 0);
      EXPECT_GT(timing->step_s, timing->layers_s);
      measured.samples.push_back({batch.Shape(), timing->step_s, timing->layers_s});
    }
  }
  const auto profile = cost::FitProfile(std::move(measured), {.tokens = {0, 16}, .sequences = {0}});
  ASSERT_TRUE(profile.ok()) << profile.status().ToString();
  const auto again = cost::ParseProfile(cost::FormatProfile(*profile), "p.json");
  EXPECT_TRUE(again.ok()) << again.status().ToString();
  FrontEndOptions serving{.model = folder, .max_model_len = 128};
  serving.max_batched_tokens = limits.max_tokens;
  serving.spec = (*rig)->runner().model().spec();
  const auto front_end = MeasureFrontEnd(serving, (*rig)->TakeStage(), clock);
  ASSERT_TRUE(front_end.ok()) << front_end.status().ToString();
  EXPECT_GT(front_end->request_s, 0);
  EXPECT_LT(front_end->request_s, 1);
  EXPECT_GE(front_end->step_s, 0);  // on a busy machine it hides in the differences of steps
  EXPECT_LT(front_end->step_s, 0.1);
  EXPECT_LT(front_end->sequence_s, 0.1);
  EXPECT_LT(front_end->arrival_s, 0.1);
}

TEST(FrontEndTest, SeparatesTheSharesOfStepSequenceAndArrival) {
  std::vector<ServedStep> steps;
  for (int i = 0; i < 50; ++i) {
    const double wait_s = i % 10 == 0 ? 0.5 : 0;  // for work or a core: a tenth are cut off
    for (const int sequences : {1, 3, 8}) {
      steps.push_back({.sequences = sequences, .added_s = 2e-4 + 3e-5 * sequences + wait_s});
    }
    steps.push_back({.sequences = 2, .arrivals = 1, .added_s = 2e-4 + 6e-5 + 4e-4});
    steps.push_back({.sequences = 2, .arrivals = 2, .added_s = 1});  // two arrivals: ignored
  }
  steps.push_back({.sequences = 7, .added_s = 1});  // too rare for a result
  const cost::FrontEnd front_end = FitFrontEnd(steps);
  EXPECT_NEAR(front_end.step_s, 2e-4, 1e-9);
  EXPECT_NEAR(front_end.sequence_s, 3e-5, 1e-9);
  EXPECT_NEAR(front_end.arrival_s, 4e-4, 1e-9);
}

TEST(FrontEndTest, SharesWithoutMeasurementsAreZero) {
  EXPECT_EQ(FitFrontEnd({}).step_s, 0);
  // Arrivals alone do not show their share.
  const std::vector<ServedStep> steps(20, {.sequences = 1, .arrivals = 1, .added_s = 1});
  EXPECT_EQ(FitFrontEnd(steps).arrival_s, 0);
}

}  // namespace
}  // namespace millrace::apps
