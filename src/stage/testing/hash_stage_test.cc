#include "stage/testing/hash_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <thread>

#include "base/rng.h"
#include "sched/scheduler.h"

namespace millrace::stage {
namespace {

constexpr PipelineId kPipeline{1};
constexpr TokenId kEos = 7;
constexpr int kBlocks = 36;
const HashModel kModel{.num_layers = 6, .vocab_size = 200, .heads = 2, .seed = 5};

struct TestRequest {
  std::vector<TokenId> prompt;
  SamplingParams params;
  uint64_t seed = 0;
  std::vector<TokenId> Answer(int index) const {
    return HashReference(kModel, prompt, params, SequenceSeed(seed, index), *params.max_tokens,
                         std::vector<TokenId>{kEos});
  }
};

sched::SchedulerOptions SmallPool(int stages) {
  sched::SchedulerOptions o;
  o.block_size = 4;
  o.num_blocks = kBlocks;
  o.num_host_blocks = 8;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 16;
  o.max_model_len = 64;
  o.stages = stages;
  o.eos_token_ids = {kEos};
  return o;
}

// A pipeline through stages of these layer ranges, each on `ranks` tensor-parallel ranks.
class Chain {
 public:
  Chain(const std::vector<LayerRange>& ranges, int ranks, const sched::SchedulerOptions& o)
      : scheduler_(std::move(sched::Scheduler::Create(o)).value()) {
    for (const LayerRange& range : ranges) {
      stages_.emplace_back();
      for (int r = 0; r < ranks; ++r) {
        const int heads = kModel.heads / ranks;
        stages_.back().emplace_back(kModel, LayerRange{0, kModel.num_layers},
                                    std::pair(r * heads, (r + 1) * heads));
        const Status opened = stages_.back().back().OpenPipeline(
            kPipeline, {range, o.block_size, o.num_blocks, o.num_host_blocks, range.begin == 0,
                        range.end == kModel.num_layers, o.eos_token_ids});
        EXPECT_TRUE(opened.ok()) << opened.ToString();
      }
    }
  }

  void Add(uint64_t id, const TestRequest& q) {
    const Status added =
        scheduler_->Add({.id = RequestId(id),
                         .prompt = std::make_shared<const std::vector<TokenId>>(q.prompt),
                         .params = std::make_shared<const SamplingParams>(q.params),
                         .seed = q.seed},
                        Time{});
    ASSERT_TRUE(added.ok()) << added.ToString();
  }

  StepResult Run(const StepPlan& plan) {
    const std::span<const SequenceView> sequences = tables_.Advance(plan);
    std::vector<std::byte> rows;
    StepResult result;
    for (auto& ranks : stages_) {
      std::vector<HashStage*> pointers;
      std::vector<StagePart> parts(ranks.size());
      std::vector<std::span<StagePart>> spans;
      for (size_t r = 0; r < ranks.size(); ++r) {
        pointers.push_back(&ranks[r]);
        parts[r] = {.pipeline = kPipeline, .plan = &plan, .sequences = sequences, .input = rows};
        spans.emplace_back(&parts[r], 1);
      }
      const Status ran = HashStage::RunRanks(pointers, spans);
      EXPECT_TRUE(ran.ok()) << ran.ToString();
      for (const StagePart& part : parts) EXPECT_EQ(part.output, parts[0].output);
      rows = std::move(parts[0].output);
      result = std::move(parts[0].result);
    }
    return result;
  }

  // Takes one more step, and runs it as late as the steps in flight allow.
  bool Turn() {
    while (const StepPlan* plan = scheduler_->Schedule(Time{})) in_flight_.push_back(*plan);
    if (in_flight_.empty()) return false;
    scheduler_->Commit(Run(in_flight_.front()), Time{}, outputs_);
    in_flight_.pop_front();
    scheduler_->CheckIntegrity();
    return true;
  }

  std::vector<TokenId> TokensOf(uint64_t id, int index) const {
    std::vector<TokenId> tokens;
    for (const RequestOutput& out : outputs_) {
      if (out.request != RequestId(id) || out.index != index) continue;
      tokens.insert(tokens.end(), out.tokens.begin(), out.tokens.end());
    }
    return tokens;
  }

  sched::Scheduler& scheduler() { return *scheduler_; }
  HashStage& stage(int hop, int rank = 0) { return stages_[hop][rank]; }

 private:
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::vector<std::deque<HashStage>> stages_;
  SequenceTables tables_;
  std::deque<StepPlan> in_flight_;
  std::vector<RequestOutput> outputs_;
};

std::vector<TestRequest> TestRequests(uint64_t seed, int count, int n_max) {
  Rng rng(seed);
  std::vector<TestRequest> test_requests(count);
  for (TestRequest& q : test_requests) {
    for (int64_t i = rng.Between(1, 20); i > 0; --i) {
      // Few distinct tokens: prefixes are shared.
      q.prompt.push_back(static_cast<TokenId>(rng.Between(0, 1)));
    }
    q.params.max_tokens = static_cast<int>(rng.Between(1, 30));
    q.params.min_tokens = static_cast<int>(rng.Between(0, *q.params.max_tokens));
    q.params.temperature = rng.Between(0, 1) ? 1.0 : 0.0;
    q.params.n = static_cast<int>(rng.Between(1, n_max));
    if (rng.Between(0, 3) == 0) q.params.stop_token_ids = {11, 13};
    q.seed = rng.Next();
  }
  return test_requests;
}

struct Shape {
  std::vector<LayerRange> ranges;
  int ranks;
};

// For every split, with swaps, preemptions, shared prefixes and copies.
TEST(HashStage, ChainsOfAnyShapeGiveTheReferenceAnswer) {
  const std::vector<Shape> shapes = {{{{0, 6}}, 1},
                                     {{{0, 6}}, 2},
                                     {{{0, 1}, {1, 6}}, 1},
                                     {{{0, 3}, {3, 6}}, 2},
                                     {{{0, 2}, {2, 5}, {5, 6}}, 1}};
  uint64_t swaps = 0, copies = 0, hits = 0;
  for (const Shape& shape : shapes) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      sched::SchedulerOptions options = SmallPool(static_cast<int>(shape.ranges.size()));
      options.preemption = seed % 2 ? sched::PreemptionMode::kSwap : sched::PreemptionMode::kAuto;
      Chain chain(shape.ranges, shape.ranks, options);
      const auto test_requests = TestRequests(seed, 10, 3);
      for (size_t i = 0; i < test_requests.size(); ++i) chain.Add(i + 1, test_requests[i]);
      while (chain.Turn()) {
      }
      for (size_t i = 0; i < test_requests.size(); ++i) {
        for (int index = 0; index < test_requests[i].params.n; ++index) {
          EXPECT_EQ(chain.TokensOf(i + 1, index), test_requests[i].Answer(index))
              << "request " << i + 1 << " sequence " << index << " seed " << seed;
        }
      }
      const sched::SchedulerStats stats = chain.scheduler().Stats();
      swaps += stats.preemptions_swap;
      copies += stats.copied_blocks;
      hits += stats.prefix_hit_tokens;
    }
  }
  EXPECT_GT(swaps, 0u);
  EXPECT_GT(copies, 0u);
  EXPECT_GT(hits, 0u);
}

TestRequest Long() { return {{5, 6, 7, 8, 9, 10, 11}, {.max_tokens = 30, .ignore_eos = true}, 3}; }

// Changes one half of one slot of one layer, anywhere before the current position.
TEST(HashStage, APlantedWrongSlotChangesTheTokens) {
  for (const LayerRange layer : {LayerRange{0, 1}, LayerRange{2, 3}, LayerRange{5, 6}}) {
    for (const bool value_half : {false, true}) {
      Chain chain({{0, 3}, {3, 6}}, 1, SmallPool(1));
      const TestRequest q = Long();
      chain.Add(1, q);
      for (int i = 0; i < 8; ++i) ASSERT_TRUE(chain.Turn());
      const auto before = chain.TokensOf(1, 0);
      HashStage& stage = chain.stage(layer.begin / 3);
      const KvBox box{layer, 1, 2, 2, 3};
      // Blocks are allocated from the first on; whichever block the table begins with, all are
      // tried.
      for (BlockIndex block = 0; block < kBlocks; ++block) {
        std::vector<std::byte> bytes(stage.KvBytes(box));
        ASSERT_TRUE(stage.ReadKv(kPipeline, box, std::vector<BlockIndex>{block}, bytes).ok());
        bytes[value_half ? 4 : 0] ^= std::byte{1};
        ASSERT_TRUE(stage.WriteKv(kPipeline, box, std::vector<BlockIndex>{block}, bytes).ok());
      }
      while (chain.Turn()) {
      }
      const auto tokens = chain.TokensOf(1, 0);
      const auto expected = q.Answer(0);
      ASSERT_EQ(tokens.size(), expected.size());
      const size_t delivered = before.size();
      EXPECT_TRUE(std::equal(before.begin(), before.end(), expected.begin()));
      EXPECT_FALSE(
          std::equal(tokens.begin() + delivered, tokens.end(), expected.begin() + delivered));
    }
  }
}

// KV written by a chain of one shape is read by boxes and written into another. That chain
// continues with the same tokens; if one box is left out, the tokens change.
TEST(HashStage, KvMovesBetweenShapes) {
  for (const bool forget_one : {false, true}) {
    const TestRequest q = Long();
    const auto expected = q.Answer(0);
    std::vector<TokenId> context = q.prompt;
    context.insert(context.end(), expected.begin(), expected.begin() + 9);
    const int tokens = static_cast<int>(context.size()) - 1;  // tokens whose KV exists
    StepPlan whole;
    whole.id = StepId(1);
    whole.started = {{SequenceId(1), std::make_shared<const SamplingParams>(q.params), q.seed,
                      std::make_shared<const std::vector<TokenId>>(q.prompt)}};
    whole.tokens.assign(context.begin(), context.end() - 1);
    whole.blocks = {9, 3, 0, 7, 5};
    whole.sequences = {{SequenceId(1), 0, tokens, 0, 0, 0, 5, LogitsWanted::kLast}};
    Chain from({{0, 4}, {4, 6}}, 1, SmallPool(1));
    ASSERT_EQ(from.Run(whole).sequences[0].token, expected[8]);

    Chain to({{0, 1}, {1, 6}}, 2, SmallPool(1));
    const std::vector<BlockIndex> table = {2, 20, 11, 4, 1};
    bool skipped = false;
    for (int hop = 0; hop < 2; ++hop) {
      for (int rank = 0; rank < 2; ++rank) {
        for (const LayerRange layers : {LayerRange{0, 1}, LayerRange{1, 4}, LayerRange{4, 6}}) {
          if ((layers.begin == 0) != (hop == 0)) continue;
          const KvBox box{layers, rank, rank + 1, 0, tokens};
          std::vector<std::byte> bytes(from.stage(0).KvBytes(box));
          HashStage& source = from.stage(layers.begin == 4);
          ASSERT_TRUE(source.ReadKv(kPipeline, box, whole.blocks, bytes).ok());
          if (forget_one && !std::exchange(skipped, true)) continue;
          ASSERT_TRUE(to.stage(hop, rank).WriteKv(kPipeline, box, table, bytes).ok());
        }
      }
    }
    StepPlan next = whole;
    next.tokens = {context.back()};
    next.blocks = table;
    next.sequences = {{SequenceId(1), tokens, 1, 0, 0, 0, 5, LogitsWanted::kLast}};
    EXPECT_EQ(to.Run(next).sequences[0].token == expected[9], !forget_one);
  }
}

TEST(HashStage, MergesPipelinesThatEnterAndLeaveAtDifferentLayers) {
  const TestRequest q = Long();
  StepPlan plan;
  plan.id = StepId(1);
  plan.started = {{SequenceId(1), std::make_shared<const SamplingParams>(q.params), q.seed,
                   std::make_shared<const std::vector<TokenId>>(q.prompt)}};
  plan.tokens = q.prompt;
  plan.blocks = {1, 0};
  plan.sequences = {{SequenceId(1), 0, 7, 0, 0, 0, 2, LogitsWanted::kLast}};
  HashStage early(kModel, {0, 4}), late(kModel, {2, 6});
  // Pipeline 1 changes stages after layer 2, pipeline 2 after layer 4.
  const PipelineId other{2};
  ASSERT_TRUE(early.OpenPipeline(kPipeline, {{0, 2}, 4, 2, 0, true, false, {}}).ok());
  ASSERT_TRUE(early.OpenPipeline(other, {{0, 4}, 4, 2, 0, true, false, {}}).ok());
  ASSERT_TRUE(late.OpenPipeline(kPipeline, {{2, 6}, 4, 2, 0, false, true, {}}).ok());
  ASSERT_TRUE(late.OpenPipeline(other, {{4, 6}, 4, 2, 0, false, true, {}}).ok());
  SequenceTables tables;
  const auto sequences = tables.Advance(plan);
  std::vector<StagePart> first = {{kPipeline, &plan, sequences}, {other, &plan, sequences}};
  ASSERT_TRUE(early.Run(first).ok());
  std::vector<StagePart> second = {{kPipeline, &plan, sequences, first[0].output},
                                   {other, &plan, sequences, first[1].output}};
  ASSERT_TRUE(late.Run(second).ok());
  EXPECT_EQ(second[0].result.sequences[0].token, q.Answer(0)[0]);
  EXPECT_EQ(second[1].result.sequences[0].token, q.Answer(0)[0]);
}

TEST(HashStage, RefusesPartsThatDoNotFit) {
  HashStage stage(kModel, {0, 6});
  EXPECT_FALSE(stage.OpenPipeline(kPipeline, {{0, 7}, 4, 4, 0, true, true, {}}).ok());
  ASSERT_TRUE(stage.OpenPipeline(kPipeline, {{0, 6}, 4, 4, 0, true, true, {}}).ok());
  EXPECT_FALSE(stage.OpenPipeline(kPipeline, {{0, 6}, 4, 4, 0, true, true, {}}).ok());
  const StepPlan plan;
  const std::vector<std::byte> row(stage.row_bytes());
  const auto refused = [&](StagePart part) {
    EXPECT_TRUE(stage.Run({&part, 1}).ok());
    return !part.result.error.ok();
  };
  EXPECT_FALSE(refused({kPipeline, &plan}));
  EXPECT_TRUE(refused({PipelineId(9), &plan}));
  EXPECT_EQ(stage.refused_writes(), 1u);
  EXPECT_TRUE(refused({.pipeline = kPipeline, .plan = &plan, .layers = LayerRange{3, 7}}));
  EXPECT_TRUE(
      refused({.pipeline = kPipeline, .plan = &plan, .input = row, .layers = LayerRange{3, 6}}))
      << "a row without a token";
  stage.ClosePipeline(kPipeline);
  EXPECT_TRUE(refused({kPipeline, &plan}));
}

// Transfers run on threads of their own, and one may read while its pipeline closes.
TEST(HashStage, ATransferMeetsTheEndOfItsPipeline) {
  HashStage stage(kModel, {0, 6});
  const KvBox box{{0, 6}, 0, kModel.heads, 0, 16};
  const std::vector<BlockIndex> blocks = {3, 1, 2, 0};
  std::atomic<bool> stop = false;
  std::atomic<int> read = 0;
  std::thread transfer([&] {
    std::vector<std::byte> bytes(stage.KvBytes(box));
    while (!stop) {
      const Status status = stage.ReadKv(kPipeline, box, blocks, bytes);
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kNotFound) << status.ToString();
      if (status.ok()) ++read;
    }
  });
  for (int round = 0; round < 200 || read < 20; ++round) {
    EXPECT_TRUE(stage.OpenPipeline(kPipeline, {{0, 6}, 4, 4, 0, true, true, {}}).ok());
    if (round % 4 == 0) std::this_thread::yield();
    stage.ClosePipeline(kPipeline);
  }
  stop = true;
  transfer.join();
}

}  // namespace
}  // namespace millrace::stage
