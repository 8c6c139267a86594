// KV that leaves the stages of one pipeline and is used in another: with other layers, another
// block size and other blocks, the tokens are those of one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "model/test_folder.h"
#include "stage/testing/pipelines.h"

namespace millrace::stage {
namespace {

sched::SchedulerOptions Options(int block_size, int stages) {
  sched::SchedulerOptions o;
  o.block_size = block_size;
  o.num_blocks = 1600 / block_size;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 40;
  o.max_model_len = 144;
  o.stages = stages;
  return o;
}

// A scheduler over stages, driven step by step.
class Side {
 public:
  Side(const std::string& path, const std::vector<LayerRange>& split, int block_size)
      : scheduler_(
            std::move(sched::Scheduler::Create(Options(block_size, static_cast<int>(split.size()))))
                .value()) {
    for (const LayerRange& range : split) {
      stages_.push_back(NewTestStage(path, {.layers = range}));
      const auto options = Options(block_size, 1);
      const Status opened =
          stages_.back()->OpenPipeline(kPipeline, {.layers = range,
                                                   .block_size = block_size,
                                                   .num_blocks = options.num_blocks,
                                                   .first = range.begin == 0,
                                                   .last = range.end == 6});
      EXPECT_TRUE(opened.ok()) << opened.ToString();
    }
  }

  static constexpr PipelineId kPipeline{1};

  void Add(sched::NewRequest request) {
    const Status added = scheduler_->Add(std::move(request), Time{});
    ASSERT_TRUE(added.ok()) << added.ToString();
  }

  bool Step() {
    const StepPlan* plan = scheduler_->Schedule(Time{}, pulls_).plan;
    if (plan == nullptr) return false;
    std::vector<std::byte> rows;
    StepResult result;
    const std::span<const SequenceView> sequences = tables_.Advance(*plan);
    for (const auto& stage : stages_) {
      StagePart part{.pipeline = kPipeline, .plan = plan, .sequences = sequences, .input = rows};
      EXPECT_TRUE(stage->Run({&part, 1}).ok());
      EXPECT_TRUE(part.result.error.ok()) << part.result.error.ToString();
      rows = std::move(part.output);
      result = std::move(part.result);
    }
    std::vector<RequestOutput> outputs;
    EXPECT_TRUE(scheduler_->Commit(result, Time{}, outputs, pulls_).ok());
    for (const RequestOutput& out : outputs) {
      auto& tokens = tokens_[{out.request, out.index}];
      tokens.insert(tokens.end(), out.tokens.begin(), out.tokens.end());
    }
    return true;
  }

  // Moves the pull's tokens from `from`, each stage's layers from the stages that hold them, in
  // boxes of some tokens and heads at a time.
  void Pull(const sched::KvPull& pull, const Side& from, std::span<const BlockIndex> held,
            Rng& rng) {
    for (const auto& to : stages_) {
      for (const auto& source : from.stages_) {
        const LayerRange layers = {std::max(to->layers().begin, source->layers().begin),
                                   std::min(to->layers().end, source->layers().end)};
        if (layers.size() <= 0) continue;
        const auto [first_head, end_head] = to->kv_heads();
        for (int head = first_head; head < end_head; ++head) {
          for (int token = pull.first_token; token < pull.end_token;) {
            const int end = std::min(pull.end_token, token + static_cast<int>(rng.Between(1, 60)));
            const KvBox box{layers, head, head + 1, token, end};
            std::vector<std::byte> bytes(source->KvBytes(box));
            ASSERT_EQ(bytes.size(), to->KvBytes(box));
            ASSERT_TRUE(source->ReadKv(kPipeline, box, held, bytes).ok());
            ASSERT_TRUE(to->WriteKv(kPipeline, box, pull.blocks, bytes).ok());
            token = end;
          }
        }
      }
    }
  }

  sched::Scheduler& scheduler() { return *scheduler_; }
  std::vector<sched::KvPull> TakePulls() { return std::exchange(pulls_, {}); }
  ModelStage& stage(size_t i) { return *stages_[i]; }
  const std::vector<TokenId>& tokens(RequestId id, int index = 0) { return tokens_[{id, index}]; }

 private:
  std::vector<std::unique_ptr<ModelStage>> stages_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::vector<sched::KvPull> pulls_;
  SequenceTables tables_;
  std::map<std::pair<RequestId, int>, std::vector<TokenId>> tokens_;
};

sched::NewRequest AsRequest(const TestRequest& r, RequestId id, int max_tokens, int n = 1) {
  SamplingParams params = r.params;
  params.n = n;
  params.min_tokens = 0;
  params.ignore_eos = true;
  params.prompt_logprobs = {};
  params.pooling = Pooling::kNone;
  params.max_tokens = max_tokens;
  return {.id = id,
          .prompt = std::make_shared<const std::vector<TokenId>>(r.prompt),
          .params = std::make_shared<const SamplingParams>(params),
          .seed = r.seed};
}

struct MoveCase {
  const char* shape;
  DType dtype;
  std::vector<LayerRange> from, to;
  int from_block_size, to_block_size;
};

class KvMoveTest : public testing::TestWithParam<MoveCase> {
 protected:
  model::TestFolder folder_;
};

// Requests begin on one side and continue on the other after a few tokens, beside requests that
// already run there.
TEST_P(KvMoveTest, DecodingContinuesWhereTheKvWasWritten) {
  constexpr int kTokens = 30;
  const MoveCase& c = GetParam();
  const std::string path = MakeTinyModel(folder_.path(), c.shape, c.dtype);
  Side alone(path, {{0, 6}}, 16), from(path, c.from, c.from_block_size),
      to(path, c.to, c.to_block_size);
  const auto requests = MixedRequests(12, 50);
  Rng rng(4);
  int64_t pulled = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestId id(i + 1);
    alone.Add(AsRequest(requests[i], id, kTokens));
    auto start = AsRequest(requests[i], id, static_cast<int>(rng.Between(1, 20)));
    start.hold_kv = Duration::Seconds(60);
    from.Add(std::move(start));
  }
  while (alone.Step()) {
  }
  while (from.Step()) {
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestId id(i + 1);
    auto rest = AsRequest(requests[i], id, kTokens);
    rest.resumed = {{from.tokens(id)}};
    // All but the last token, whose KV is not computed yet; sometimes fewer, in the middle of a
    // block.
    int imported = static_cast<int>(rest.prompt->size() + from.tokens(id).size()) - 1;
    if (i % 3 == 0) imported = (imported + 1) / 2;
    rest.imported_tokens = {imported};
    to.Add(std::move(rest));
    do {
      const std::vector<sched::KvPull> pulls = to.TakePulls();
      for (const sched::KvPull& pull : pulls) {
        to.Pull(pull, from, from.scheduler().HeldBlocks(pull.id), rng);
        pulled += pull.end_token - pull.first_token;
        to.scheduler().KvArrived(pull.id, true, Time{});
        from.scheduler().ReleaseKv(pull.id);
      }
    } while (to.Step() && rng.Between(0, 9) > 0);
  }
  while (to.scheduler().HasWork()) {
    const std::vector<sched::KvPull> pulls = to.TakePulls();
    for (const sched::KvPull& pull : pulls) {
      to.Pull(pull, from, from.scheduler().HeldBlocks(pull.id), rng);
      pulled += pull.end_token - pull.first_token;
      to.scheduler().KvArrived(pull.id, true, Time{});
    }
    ASSERT_TRUE(to.Step() || !pulls.empty());
  }
  EXPECT_GT(pulled, 100);
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestId id(i + 1);
    auto delivered = from.tokens(id);
    delivered.insert(delivered.end(), to.tokens(id).begin(), to.tokens(id).end());
    ASSERT_EQ(delivered, alone.tokens(id)) << "request " << i;
  }
  to.scheduler().CheckIntegrity();
}

// Sequences of one prompt, cut anywhere, before or after they fork; blocks of another size share
// more of the prompt, or less.
TEST_P(KvMoveTest, SeveralSequencesContinueWhereTheKvWasWritten) {
  constexpr int kTokens = 12;
  const MoveCase& c = GetParam();
  const std::string path = MakeTinyModel(folder_.path(), c.shape, c.dtype);
  Side alone(path, {{0, 6}}, 16), from(path, c.from, c.from_block_size),
      to(path, c.to, c.to_block_size);
  const auto requests = MixedRequests(12, 50);
  Rng rng(5);
  int own = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestId id(i + 1);
    const int n = static_cast<int>(2 + i % 3);
    alone.Add(AsRequest(requests[i], id, kTokens, n));
    from.Add(AsRequest(requests[i], id, kTokens, n));
    for (int64_t steps = rng.Between(1, 10); steps > 0; --steps) from.Step();
    auto left = from.scheduler().Detach(id, Time{}, Duration::Seconds(60));
    ASSERT_TRUE(left.has_value());
    for (const sched::SequenceKv& s : left->kv) left->request.imported_tokens.push_back(s.tokens);
    to.Add(std::move(left->request));
    while (to.scheduler().HasWork()) {
      const bool stepped = to.Step();
      const std::vector<sched::KvPull> pulls = to.TakePulls();
      for (const sched::KvPull& pull : pulls) {
        own += pull.index > 0;
        to.Pull(pull, from, left->kv[static_cast<size_t>(pull.index)].blocks, rng);
        to.scheduler().KvArrived(pull.id, true, Time{});
      }
      ASSERT_TRUE(stepped || !pulls.empty());
      to.scheduler().CheckIntegrity();
    }
    from.scheduler().ReleaseKv(id);
    EXPECT_EQ(to.scheduler().Stats().prompt_tokens_recomputed, 0u);
  }
  EXPECT_GT(own, 5) << "sequences that had forked import their own KV";
  while (alone.Step()) {
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestId id(i + 1);
    for (int k = 0; k < static_cast<int>(2 + i % 3); ++k) {
      auto delivered = from.tokens(id, k);
      delivered.insert(delivered.end(), to.tokens(id, k).begin(), to.tokens(id, k).end());
      ASSERT_EQ(delivered, alone.tokens(id, k)) << "request " << i << ", sequence " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, KvMoveTest,
    testing::Values(
        MoveCase{"llama-160m", DType::kBF16, {{0, 2}, {2, 6}}, {{0, 4}, {4, 6}}, 16, 48},
        MoveCase{"qwen3-0.6b", DType::kF16, {{0, 6}}, {{0, 1}, {1, 3}, {3, 6}}, 32, 16},
        MoveCase{"opt-125m", DType::kF32, {{0, 1}, {1, 5}, {5, 6}}, {{0, 6}}, 16, 64}),
    [](const auto& info) { return std::string(DTypeName(info.param.dtype)); });

TEST(KvMove, BoxesOutsideAPipelineAreRefused) {
  model::TestFolder folder;
  Side side(MakeTinyModel(folder.path(), "llama-160m"), {{0, 4}, {4, 6}}, 16);
  ModelStage& stage = side.stage(0);
  std::vector<BlockIndex> table = {3, 1};
  const KvBox good{{0, 4}, 0, 4, 0, 32};
  std::vector<std::byte> bytes(stage.KvBytes(good));
  EXPECT_EQ(bytes.size(), 4u * 2 * 4 * 32 * 8 * 2);
  const auto code = [&](const KvBox& box, PipelineId pipeline = Side::kPipeline) {
    const StatusCode read = stage.ReadKv(pipeline, box, table, bytes).code();
    EXPECT_EQ(stage.WriteKv(pipeline, box, table, bytes).code(), read);
    return read;
  };
  EXPECT_EQ(code(good), StatusCode::kOk);
  EXPECT_EQ(code(good, PipelineId(2)), StatusCode::kNotFound);
  EXPECT_EQ(code({{0, 5}, 0, 4, 0, 32}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, 4}, 0, 5, 0, 32}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, 4}, 0, 4, 0, 33}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{0, 4}, 0, 4, 5, 4}), StatusCode::kInvalidArgument);
  table[1] = 100;
  EXPECT_EQ(code(good), StatusCode::kInvalidArgument);
  table[1] = -1;
  EXPECT_EQ(code(good), StatusCode::kInvalidArgument);
  stage.ClosePipeline(Side::kPipeline);
  EXPECT_EQ(code(good), StatusCode::kNotFound);
}

// Transfers run while steps run, and while their pipeline is closed.
TEST(KvMove, TransfersRunBesideSteps) {
  model::TestFolder folder;
  Side side(MakeTinyModel(folder.path(), "llama-160m"), {{0, 6}}, 16);
  ModelStage& stage = side.stage(0);
  // The last blocks of the pool: the scheduler has too few requests to use them.
  const std::vector<BlockIndex> table = {99, 98, 97};
  const KvBox box{{0, 6}, 0, 4, 3, 45};
  std::atomic<bool> stop = false;
  std::atomic<int> rounds = 0;
  std::thread transfer([&] {
    std::vector<std::byte> in(stage.KvBytes(box)), out(in.size());
    for (int round = 0; !stop; ++round) {
      for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i * 31 + round);
      if (!stage.WriteKv(Side::kPipeline, box, table, in).ok()) break;
      if (!stage.ReadKv(Side::kPipeline, box, table, out).ok()) break;
      EXPECT_EQ(in, out);
      ++rounds;
    }
  });
  const auto requests = MixedRequests(6, 60);
  for (size_t i = 0; i < requests.size(); ++i) {
    side.Add(AsRequest(requests[i], RequestId(i + 1), 20));
  }
  while (side.Step() || rounds < 3) {
  }
  stage.ClosePipeline(Side::kPipeline);
  stop = true;
  transfer.join();
}

}  // namespace
}  // namespace millrace::stage
