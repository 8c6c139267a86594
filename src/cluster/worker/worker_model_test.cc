// A worker keeps what it has loaded when only the other ranks of its stage change.
#include "cluster/worker/worker_model.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "base/host_memory.h"
#include "base/log.h"
#include "model/make_model.h"
#include "model/shapes.h"
#include "model/test_folder.h"

namespace millrace::cluster {
namespace {

constexpr int kRanks = 2;
constexpr LayerRange kLayers{0, 2};

// Two workers' loaders. Where the ranks must meet, each runs on a thread of its own.
class RanksOfAStage : public testing::Test {
 protected:
  using Stages = std::array<std::shared_ptr<stage::Stage>, kRanks>;

  RanksOfAStage() {
    EXPECT_TRUE(InitLog("warning").ok());  // before the threads that log
    const model::ShapeNumbers tiny = {
        .layers = 4, .hidden = 32, .heads = 4, .vocab = 300, .positions = 64};
    EXPECT_TRUE(model::MakeModel(*model::ShapeConfig("llama-160m", tiny), folder_.path(), {}).ok());
    for (auto& loader : loaders_) {
      loader = MakeShardLoader({.folder = folder_.path(), .kv_bytes = 1 << 20});
    }
  }

  template <typename F>
  static void Together(F f) {
    std::vector<std::thread> threads;
    for (int r = 0; r < kRanks; ++r) threads.emplace_back([&, r] { f(static_cast<size_t>(r)); });
    for (std::thread& t : threads) t.join();
  }
  // Returns how many bytes of weights they reported as read.
  int64_t Load(uint64_t group, const Stages& same, LayerRange layers = kLayers) {
    std::atomic<int64_t> bytes = 0;
    Together([&](size_t r) {
      LoadShard load{.shard = ShardId(group), .layers = layers, .max_batched_tokens = 16};
      load.group = group * 1'000'000 + static_cast<uint64_t>(getpid());
      load.rank = {static_cast<int>(r), kRanks};
      load.ranks.resize(kRanks);
      loaded_[r] = loaders_[r](load, same[r], [&](int64_t done, int64_t) {
        bytes += done;
        return true;
      });
      EXPECT_TRUE(loaded_[r].facts.status.ok()) << loaded_[r].facts.status.ToString();
    });
    return bytes;
  }
  Stages stages() const { return {loaded_[0].stage, loaded_[1].stage}; }

  // Runs a prompt in a pipeline of its own. Returns the activations that leave the stage at rank 0.
  static Result<std::vector<std::byte>> Run(const Stages& stages, PipelineId pipeline,
                                            LayerRange layers = kLayers) {
    StepPlan plan{.id = StepId(1), .tokens = {5, 17, 250}, .blocks = {0}};
    plan.started = {{SequenceId(1), std::make_shared<SamplingParams>(), 1,
                     std::make_shared<std::vector<TokenId>>(plan.tokens)}};
    plan.sequences = {{.id = SequenceId(1), .num_tokens = 3, .num_new_blocks = 1}};
    SequenceTables tables;
    const std::span<const SequenceView> sequences = tables.Advance(plan);
    std::array<stage::StagePart, kRanks> parts;
    std::array<Status, kRanks> ran;
    Together([&](size_t r) {
      ran[r] =
          stages[r]->OpenPipeline(pipeline, {.layers = layers, .num_blocks = 1, .first = true});
      parts[r] = {.pipeline = pipeline, .plan = &plan, .sequences = sequences};
      if (ran[r].ok()) ran[r] = stages[r]->Run({&parts[r], 1});
      stages[r]->ClosePipeline(pipeline);
    });
    for (const Status& status : ran) MR_RETURN_IF_ERROR(status);
    EXPECT_EQ(parts[0].output, parts[1].output);
    return parts[0].output;
  }

  model::TestFolder folder_;
  std::array<ShardLoader, kRanks> loaders_;
  std::array<LoadedShard, kRanks> loaded_;
};

// As after a change of controller or the loss of a rank. Reading the weights can take minutes.
TEST_F(RanksOfAStage, ContinueInAnotherGroupWithoutLoadingAgain) {
  EXPECT_GT(Load(1, {}), 0);
  const Stages first = stages();
  const auto abort = loaded_[1].abort;
  const auto expected = Run(first, PipelineId(1));
  ASSERT_TRUE(expected.ok()) << expected.status().ToString();
  EXPECT_GT(expected->size(), 0u);

  EXPECT_EQ(Load(2, first), 0) << "the weights are loaded";
  EXPECT_GT(loaded_[0].facts.kv_bytes_per_token_layer, 0);
  // Both may run until the first group ends, as during a change of plan.
  EXPECT_EQ(*Run(stages(), PipelineId(2)), *expected);
  EXPECT_EQ(*Run(first, PipelineId(3)), *expected);
  abort("a rank is gone");
  EXPECT_FALSE(Run(first, PipelineId(4)).ok());
  EXPECT_EQ(*Run(stages(), PipelineId(5)), *expected);
}

// Only a rank that is new loads weights.
TEST_F(RanksOfAStage, OnlyANewRankLoads) {
  const int64_t both = Load(1, {});
  const auto expected = Run(stages(), PipelineId(1));
  Stages same = stages();
  same[1] = nullptr;
  loaders_[1] = MakeShardLoader({.folder = folder_.path(), .kv_bytes = 1 << 20});
  const int64_t one = Load(2, same);
  EXPECT_GT(one, 0);
  EXPECT_LT(one, both);
  EXPECT_EQ(*Run(stages(), PipelineId(2)), *expected);
}

TEST_F(RanksOfAStage, KeepTheirPartsOfTheLayers) {
  constexpr LayerRange kMore{0, 3};
  Load(1, {});
  const std::array<LoadedShard, kRanks> before = loaded_;
  Load(2, {}, kMore);
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(loaded_[r].facts.kept_bytes, before[r].facts.weight_bytes);
    EXPECT_LT(loaded_[r].facts.kept_bytes, loaded_[r].facts.weight_bytes);
  }
  const auto kept = Run(stages(), PipelineId(1), kMore);
  ASSERT_TRUE(kept.ok()) << kept.status().ToString();
  for (auto& loader : loaders_) {
    loader = MakeShardLoader({.folder = folder_.path(), .kv_bytes = 1 << 20});
  }
  Load(3, {}, kMore);
  EXPECT_EQ(loaded_[0].facts.kept_bytes, 0);
  EXPECT_EQ(*kept, *Run(stages(), PipelineId(2), kMore));
}

// A worker whose layers are shifted by changes of plan.
class AWorkersLayers : public testing::Test {
 protected:
  AWorkersLayers() {
    EXPECT_TRUE(InitLog("warning").ok());
    const model::ShapeNumbers tiny = {
        .layers = 6, .hidden = 64, .heads = 4, .vocab = 300, .positions = 64};
    EXPECT_TRUE(model::MakeModel(*model::ShapeConfig("llama-160m", tiny), folder_.path(), {}).ok());
  }

  LoadedShard Load(const ShardLoader& loader, LayerRange layers) {
    progress_ = 0;
    const LoadShard load{.shard = ShardId(1), .layers = layers, .max_batched_tokens = 16};
    return loader(load, nullptr, [&](int64_t done, int64_t) {
      progress_ = std::max(progress_, done);
      return true;
    });
  }
  ShardLoader New(std::optional<int64_t> extra_bytes = {}) {
    return MakeShardLoader(
        {.folder = folder_.path(), .kv_bytes = 1 << 20, .extra_bytes = extra_bytes});
  }
  static void Open(stage::Stage& stage) {
    const Status opened = stage.OpenPipeline(
        PipelineId(1),
        {.layers = stage.layers(), .num_blocks = 1, .first = stage.layers().begin == 0});
    EXPECT_TRUE(opened.ok()) << opened.ToString();
  }
  // The activations that leave the layers of a stage when some prompt's enter.
  static std::vector<std::byte> Run(stage::Stage& stage) {
    StepPlan plan{.id = StepId(1), .tokens = {5, 17, 250}, .blocks = {0}};
    plan.started = {{SequenceId(1), std::make_shared<SamplingParams>(), 1,
                     std::make_shared<std::vector<TokenId>>(plan.tokens)}};
    plan.sequences = {{.id = SequenceId(1), .num_tokens = 3, .num_new_blocks = 1}};
    SequenceTables tables;
    const std::span<const SequenceView> sequences = tables.Advance(plan);
    const std::vector<std::byte> input(3 * stage.row_bytes(), std::byte{63});  // floats of 0.75
    Open(stage);
    stage::StagePart part{.pipeline = PipelineId(1), .plan = &plan, .sequences = sequences};
    if (stage.layers().begin > 0) part.input = input;
    const Status ran = stage.Run({&part, 1});
    EXPECT_TRUE(ran.ok()) << ran.ToString();
    stage.ClosePipeline(PipelineId(1));
    return part.output;
  }

  model::TestFolder folder_;
  int64_t progress_ = 0;  // bytes that the last load read
};

TEST_F(AWorkersLayers, AreKeptWhenTheRangeShifts) {
  const int64_t layer = Load(New(), {1, 2}).facts.weight_bytes;
  const ShardLoader loader = New();
  LoadedShard first = Load(loader, {0, 4});
  ASSERT_TRUE(first.facts.status.ok()) << first.facts.status.ToString();
  EXPECT_EQ(first.facts.kept_bytes, 0);
  const int64_t embedding = first.facts.weight_bytes - 4 * layer;
  EXPECT_GT(embedding, 0);

  LoadedShard shifted = Load(loader, {2, 5});
  ASSERT_TRUE(shifted.facts.status.ok()) << shifted.facts.status.ToString();
  EXPECT_EQ(shifted.facts.weight_bytes, 3 * layer);
  EXPECT_EQ(shifted.facts.kept_bytes, 2 * layer);
  EXPECT_EQ(progress_, layer) << "only what is read is progress";

  // Without the first shard, the second one's layers are left.
  const std::vector<std::byte> both = Run(*shifted.stage);
  first = {};
  EXPECT_EQ(Run(*shifted.stage), both);
  EXPECT_EQ(both, Run(*Load(New(), {2, 5}).stage)) << "as when all is read";
  LoadedShard back = Load(loader, {1, 5});
  EXPECT_EQ(back.facts.kept_bytes, 3 * layer);
  back = {};
  shifted = {};
  EXPECT_EQ(Load(loader, {2, 5}).facts.kept_bytes, 0) << "all were dropped";
}

// While a shard serves. Those that are loaded for one plan have all the memory together.
TEST_F(AWorkersLayers, StayWithinTheBound) {
  const int64_t layer = Load(New(), {1, 2}).facts.weight_bytes;
  const ShardLoader loader = New(2 * layer);
  const LoadedShard serves = Load(loader, {0, 3});
  ASSERT_TRUE(serves.facts.status.ok()) << "the first load has no bound";
  const std::vector<std::byte> before = Run(*serves.stage);
  EXPECT_TRUE(Load(loader, {1, 5}).facts.status.ok()) << "it does not serve yet";
  Open(*serves.stage);
  EXPECT_FALSE(Load(loader, {1, 5}).facts.status.ok()) << "two layers and buffers";
  const LoadedShard next = Load(loader, {1, 4});
  EXPECT_TRUE(next.facts.status.ok()) << "one layer is missing";
  const Status refused = Load(loader, {2, 5}).facts.status;  // one more, for the same change
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("is available (--weights-extra)"), std::string::npos)
      << refused.message();
  serves.stage->ClosePipeline(PipelineId(1));
  EXPECT_EQ(Run(*serves.stage), before);
}

// KV is promised and not yet in use: its memory is free, but not for weights.
TEST_F(AWorkersLayers, LeaveTheMemoryOfTheKv) {
  const int64_t more = 2 * ReadMemoryAvailable().bytes;
  const auto loader = MakeShardLoader({.folder = folder_.path(), .kv_bytes = more});
  const LoadedShard serves = Load(loader, {0, 3});
  ASSERT_TRUE(serves.facts.status.ok());
  Open(*serves.stage);
  const Status refused = Load(loader, {1, 5}).facts.status;
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("for KV, as of --kv-cache-memory"), std::string::npos)
      << refused.message();
}

// Such a sequence would fail during a request, and break its pipeline.
TEST_F(RanksOfAStage, SequencesBeyondMaxModelLenAreRefusedBeforeAnythingIsLoaded) {
  const auto loader =
      MakeShardLoader({.folder = folder_.path(), .kv_bytes = 1 << 20, .max_model_len = 32});
  const auto load = [&](int max_model_len) {
    const LoadShard asked{.shard = ShardId(1),
                          .layers = kLayers,
                          .max_batched_tokens = 16,
                          .max_model_len = max_model_len};
    return loader(asked, nullptr, [](int64_t, int64_t) { return true; }).facts.status;
  };
  EXPECT_TRUE(load(32).ok());
  EXPECT_TRUE(load(0).ok());  // from a controller that does not send it
  EXPECT_NE(load(33).message().find("raise --max-model-len"), std::string::npos);
}

}  // namespace
}  // namespace millrace::cluster
