#include "stage/activation_caching_stage.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "stage/testing/losses.h"

namespace millrace::stage {
namespace {

const Cut kThree = {{0, 2}, {2, 4}, {4, 6}};
const std::vector<Cut> kCuts = {
    kThree, {{0, 3}, {3, 6}}, {{0, 1}, {1, 5}, {5, 6}}, {{0, 4}, {4, 5}, {5, 6}}, {{0, 6}}};

void ExpectAnswers(const Way& way, const std::vector<TestRequest>& test_requests, uint64_t seed) {
  for (size_t q = 0; q < test_requests.size(); ++q) {
    for (int i = 0; i < test_requests[q].params.n; ++i) {
      EXPECT_EQ(way.TokensOf(q + 1, i), test_requests[q].Answer(i))
          << "seed " << seed << " request " << q << " sequence " << i;
    }
  }
}

struct Losses {
  std::set<int> begins;  // first layers of recomputations
  int lost_again = 0;    // pulls of KV that was lost again before it was recomputed
};

// Loses some of the hops at random moments until every request has its answer; with `recut`, half
// of the time other cuts follow. Few blocks, so that preemption and swapping happen between the
// losses. In some seeds there is little room for activations.
void LoseAtRandom(uint64_t seed, bool recut, Losses& losses) {
  Rng rng(seed);
  Way way(kThree, static_cast<int>(rng.Between(48, 100)), rng.Between(0, 2) == 0 ? 400 : 1 << 20);
  const std::vector<TestRequest> test_requests = TestRequests(rng, 12);
  for (size_t q = 0; q < test_requests.size(); ++q) way.Add(q + 1, test_requests[q]);
  size_t hops = kThree.size();
  for (int turn = 1; turn < 5000 && way.Turn(); ++turn) {
    if (rng.Between(0, 11) > 0) continue;
    std::set<size_t> lost;
    for (size_t h = 0; h < hops; ++h) {
      if (rng.Between(0, 2) == 0) lost.insert(h);
    }
    std::optional<Cut> cut;
    if (recut && rng.Between(0, 1) == 0) {
      cut = kCuts[static_cast<size_t>(rng.Between(0, std::ssize(kCuts) - 1))];
      hops = cut->size();
    }
    way.Lose(lost, rng, cut);
  }
  ExpectAnswers(way, test_requests, seed);
  losses.begins.insert(way.lacking_begins().begin(), way.lacking_begins().end());
  losses.lost_again += way.lost_again();
}

// Whichever hops are lost, whenever: every answer is the same as without losses.
TEST(ActivationCachingStageTest, AnswersAreTheSameWhicheverHopsAreLost) {
  Losses losses;
  for (uint64_t seed = 1; seed <= 150 && !HasFailure(); ++seed) {
    LoseAtRandom(seed, /*recut=*/false, losses);
  }
  EXPECT_GT(losses.lost_again, 100);
  EXPECT_EQ(losses.begins, (std::set<int>{0, 2, 4}))
      << "hops before the lost ones must have sent activations";
}

TEST(ActivationCachingStageTest, AnswersAreTheSameHoweverTheLayersAreRecut) {
  Losses losses;
  for (uint64_t seed = 1; seed <= 200 && !HasFailure(); ++seed) {
    LoseAtRandom(seed, /*recut=*/true, losses);
  }
  EXPECT_GT(losses.lost_again, 100);
  EXPECT_EQ(losses.begins, (std::set<int>{0, 1, 2, 3, 4, 5}));
}

// As Petals replays only a failed span: KV that survives is not recomputed, whichever stage runs
// which layers afterwards.
TEST(ActivationCachingStageTest, OnlyTheLostLayersComputeAgain) {
  Rng same(7);
  Way undisturbed(kThree, 200, 1 << 20);
  const std::vector<TestRequest> test_requests = TestRequests(same, 4);
  for (size_t q = 0; q < test_requests.size(); ++q) undisturbed.Add(q + 1, test_requests[q]);
  while (undisturbed.Turn()) {
  }
  for (const Cut& cut : kCuts) {
    for (const size_t lost : {0, 1, 2}) {
      Rng rng(7);
      Way way(kThree, 200, 1 << 20);
      for (size_t q = 0; q < test_requests.size(); ++q) way.Add(q + 1, test_requests[q]);
      for (int turn = 0; turn < 12; ++turn) way.Turn();
      way.Lose({lost}, rng, cut);
      while (way.Turn()) {
      }
      ExpectAnswers(way, test_requests, 7);
      if (cut.size() == 1)
        EXPECT_EQ(way.kept_bytes(), 0u) << "activations within a hop are used once";
      for (size_t l = 0; l < 6; ++l) {
        const int64_t again = way.computed()[l] - undisturbed.computed()[l];
        if (l / 2 == lost) {
          EXPECT_GT(again, 60) << "layer " << l;
        } else {  // a step was in progress, and forks begin at whole blocks
          EXPECT_LE(again, 16) << "layer " << l << " of " << cut.size() << " hops, lost " << lost;
        }
      }
    }
  }
}

// Records the parts that reach it.
class RecordingStage : public HashStage {
 public:
  using HashStage::HashStage;
  struct Seen {
    LayerRange layers;
    std::vector<uint64_t> sequences;
    bool continues = false;
  };
  Status Run(std::span<StagePart> parts) override {
    for (const StagePart& part : parts) {
      Seen& seen = seen_.emplace_back(Seen{part.layers.value_or(layers()), {}, !!part.layers});
      for (const SequenceView& s : part.sequences) seen.sequences.push_back(s.id.value());
    }
    return HashStage::Run(parts);
  }
  std::vector<Seen> Take() { return std::exchange(seen_, {}); }

 private:
  std::vector<Seen> seen_;
};

// First all the hop's layers, for the sequences that need them all; then each range of layers.
TEST(ActivationCachingStageTest, SomeOfAHopsLayersAreAPassOfTheirOwn) {
  const auto inner = std::make_shared<RecordingStage>(kModel, LayerRange{2, 4});
  ActivationCachingStage stage(inner);
  ASSERT_TRUE(
      stage
          .OpenPipeline(
              PipelineId(1),
              {.layers = {2, 4}, .block_size = 4, .num_blocks = 8, .cache_activations_at = {3}})
          .ok());
  StepPlan plan{.id = StepId(1), .tokens = {1, 1, 1, 1}, .blocks = {0, 1, 2, 3}};
  for (int i = 0; i < 4; ++i) {
    const SequenceId id(static_cast<uint64_t>(i) + 1);
    plan.started.push_back(
        {id, std::make_shared<SamplingParams>(), 1, std::make_shared<std::vector<TokenId>>(1, 1)});
    plan.sequences.push_back(
        {.id = id, .num_tokens = 1, .first_token = i, .first_new_block = i, .num_new_blocks = 1});
  }
  const auto run = [&](const StepPlan& step, SequenceTables& tables, size_t rows) {
    const std::vector<std::byte> input(rows * stage.row_bytes());
    StagePart part{PipelineId(1), &step, tables.Advance(step), input};
    EXPECT_TRUE(stage.Run({&part, 1}).ok());
    EXPECT_TRUE(part.result.error.ok()) << part.result.error.ToString();
    return inner->Take();
  };
  SequenceTables tables;
  ASSERT_EQ(run(plan, tables, 4).size(), 1u);
  StepPlan some{.id = StepId(2), .sequences = plan.sequences, .tokens = plan.tokens};
  for (SequenceStep& s : some.sequences) {
    s.keep_blocks = 1;
    s.first_new_block = s.num_new_blocks = 0;
  }
  some.sequences[1].only_layers = LayerRange{3, 9};
  some.sequences[3].only_layers = LayerRange{4, 6};
  const auto seen = run(some, tables, 2);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0].layers, (LayerRange{2, 4}));
  EXPECT_EQ(seen[0].sequences, (std::vector<uint64_t>{1, 3}));
  EXPECT_FALSE(seen[0].continues);
  EXPECT_EQ(seen[1].layers, (LayerRange{3, 4}));
  EXPECT_EQ(seen[1].sequences, (std::vector<uint64_t>{2}));
  EXPECT_TRUE(seen[1].continues);
}

// At the cuts of pipelines that may receive this pipeline's KV: whatever it runs there, and how
// often.
TEST(ActivationCachingStageTest, ActivationsWithinAStageAreCachedAtOtherCuts) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6};
  StepPlan plan{.id = StepId(1), .tokens = tokens, .blocks = {2, 0}};
  plan.started = {{SequenceId(1), std::make_shared<SamplingParams>(), 1,
                   std::make_shared<std::vector<TokenId>>(tokens)}};
  plan.sequences = {{.id = SequenceId(1), .num_tokens = 6, .num_new_blocks = 2}};
  const auto open = [](LayerRange layers, std::vector<int> at) {
    auto stage =
        std::make_unique<ActivationCachingStage>(std::make_shared<HashStage>(kModel, layers));
    StagePipeline pipeline{.layers = layers, .block_size = 4, .num_blocks = 4, .first = true};
    pipeline.last = layers.end == kModel.num_layers;
    pipeline.cache_activations_at = std::move(at);
    EXPECT_TRUE(stage->OpenPipeline(PipelineId(1), pipeline).ok());
    return stage;
  };
  std::map<Stage*, SequenceTables> tables;
  const auto run = [&](Stage& stage, const StepPlan& step) {
    StagePart part{PipelineId(1), &step, tables[&stage].Advance(step)};
    EXPECT_TRUE(stage.Run({&part, 1}).ok());
    EXPECT_TRUE(part.result.error.ok()) << part.result.error.ToString();
  };
  const auto activations_at = [&](Stage& stage, int layer) {
    std::vector<std::byte> rows(tokens.size() * stage.row_bytes());
    EXPECT_TRUE(stage.ReadActivations(PipelineId(1), {layer, 0, 6}, plan.blocks, rows).ok());
    return rows;
  };
  const auto whole = open({0, 6}, {2, 3, 5}), two = open({0, 2}, {2}), five = open({0, 5}, {3, 5});
  for (const auto* stage : {&whole, &two, &five}) run(**stage, plan);
  const auto expect_activations = [&] {
    EXPECT_EQ(activations_at(*whole, 2), activations_at(*two, 2));
    EXPECT_EQ(activations_at(*whole, 3), activations_at(*five, 3));
    EXPECT_EQ(activations_at(*whole, 5), activations_at(*five, 5));
  };
  expect_activations();

  // First the early layers alone, then those after them: from activations that were not consumed.
  StepPlan again = plan;
  again.started.clear();
  again.blocks.clear();
  again.sequences[0].num_new_blocks = 0;
  again.sequences[0].keep_blocks = 2;
  const std::vector<std::byte> nothing(whole->KvBytes({{0, 6}, 0, kModel.heads, 0, 6}));
  for (const LayerRange only : {LayerRange{0, 3}, LayerRange{3, 6}, LayerRange{3, 6}}) {
    if (only.begin == 0) {
      ASSERT_TRUE(
          whole->WriteKv(PipelineId(1), {{0, 6}, 0, kModel.heads, 0, 6}, plan.blocks, nothing)
              .ok());
      EXPECT_FALSE(whole->HoldsActivations(PipelineId(1), {3, 0, 1}, plan.blocks)) << "of other KV";
    }
    again.sequences[0].only_layers = only;
    run(*whole, again);
  }
  expect_activations();
}

// Blocks are reused: activations of a former owner must not be taken for those of the new one.
TEST(ActivationCachingStageTest, ImportedKvDropsTheActivationsOfItsBlocks) {
  ActivationCachingStage stage(std::make_shared<HashStage>(kModel, LayerRange{0, 2}));
  const PipelineId pipeline(1);
  ASSERT_TRUE(stage
                  .OpenPipeline(pipeline, {.layers = {0, 2},
                                           .block_size = 4,
                                           .num_blocks = 4,
                                           .first = true,
                                           .cache_activations_at = {2}})
                  .ok());
  StepPlan plan;
  plan.id = StepId(1);
  plan.started = {{SequenceId(1), std::make_shared<SamplingParams>(), 1,
                   std::make_shared<std::vector<TokenId>>(std::vector<TokenId>{1, 2, 3, 4, 5, 6})}};
  plan.tokens = {1, 2, 3, 4, 5, 6};
  plan.blocks = {2, 0};
  plan.sequences = {{.id = SequenceId(1), .num_tokens = 6, .num_new_blocks = 2}};
  SequenceTables tables;
  StagePart part{pipeline, &plan, tables.Advance(plan)};
  ASSERT_TRUE(stage.Run({&part, 1}).ok());
  ASSERT_TRUE(part.result.error.ok()) << part.result.error.ToString();
  const std::vector<BlockIndex> blocks = {2, 0};
  EXPECT_TRUE(stage.HoldsActivations(pipeline, {2, 0, 6}, blocks));
  EXPECT_FALSE(stage.HoldsActivations(pipeline, {2, 0, 7}, blocks));
  std::vector<std::byte> rows(6 * stage.row_bytes());
  ASSERT_TRUE(stage.ReadActivations(pipeline, {2, 0, 6}, blocks, rows).ok());
  EXPECT_EQ(rows, part.output);

  const KvBox box{{0, 2}, 0, kModel.heads, 5, 6};
  ASSERT_TRUE(
      stage.WriteKv(pipeline, box, blocks, std::vector<std::byte>(stage.KvBytes(box))).ok());
  EXPECT_TRUE(stage.HoldsActivations(pipeline, {2, 0, 5}, blocks));
  EXPECT_FALSE(stage.HoldsActivations(pipeline, {2, 0, 6}, blocks));
  EXPECT_EQ(stage.ReadActivations(pipeline, {2, 0, 6}, blocks, rows).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(stage.kept_bytes(), 2 * 4 * stage.row_bytes());
  stage.ClosePipeline(pipeline);
  EXPECT_EQ(stage.kept_bytes(), 0u);
}

}  // namespace
}  // namespace millrace::stage
