// Pipelines over the same two workers, with real pools: the resident memory of all their KV stays
// within what was planned for the workers, be it one pipeline or many, and goes down when blocks
// are returned. Prefixes that were kept are still right.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "cluster/control/layout/kv_memory.h"
#include "model/test_folder.h"
#include "stage/testing/pipelines.h"

namespace millrace::cluster {
namespace {

constexpr int kPipelines = 20, kTogether = 4;  // pipelines that have requests at the same time
constexpr int kBlockSize = 64, kBlocks = 48;   // that a worker has memory for
constexpr int kPromptTokens = 400, kOutputTokens = 4;
constexpr int kRequestBlocks = (kPromptTokens + kOutputTokens - 1 + kBlockSize - 1) / kBlockSize;

constexpr int64_t kOtherBytes = int64_t{4} << 20;  // heap and stacks
#ifdef MILLRACE_SANITIZED
constexpr bool kMeasures = false;  // sanitizers add memory of their own
#else
constexpr bool kMeasures = true;
#endif

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

std::string MakeWideModel(const std::string& parent) {
  const std::string path = parent + "/model";
  const model::ShapeNumbers numbers = {
      .layers = 4, .hidden = 128, .heads = 4, .vocab = 300, .positions = 512};
  const Status made = model::MakeModel(*model::ShapeConfig("llama-160m", numbers), path,
                                       {.seed = 3, .dtype = DType::kF32});
  EXPECT_TRUE(made.ok()) << made.ToString();
  return path;
}

class SharedMemoryTest : public testing::Test {
 protected:
  SharedMemoryTest() : members_(MembershipOptions{}), outbox_(members_), memory_(outbox_) {
    const std::string path = MakeWideModel(folder_.path());
    for (int i = 0; i < 2; ++i) {
      stages_.push_back(stage::NewTestStage(path, {.layers = LayerRange{2 * i, 2 * i + 2}}));
      const WorkerId worker(static_cast<uint64_t>(i));
      Join join;
      join.name = std::to_string(i);
      members_.Add(worker, ConnectionId(worker.value()), std::move(join), Time{});
      const stage::KvBox token{stages_.back()->layers(), 0, stages_.back()->kv_heads().second, 0,
                               1};
      const auto block = static_cast<int64_t>(stages_.back()->KvBytes(token)) * kBlockSize;
      ranks_.push_back({worker, block * kBlocks, block});
    }
  }

  void Open(int pipelines) {
    sched::SchedulerOptions options;
    options.block_size = kBlockSize;
    options.num_blocks = kBlocks;
    options.max_num_batched_tokens = 64;
    options.max_model_len = 512;
    options.watermark = 0;
    for (int p = 1; p <= pipelines; ++p) {
      const PipelineId id(static_cast<uint64_t>(p));
      const std::vector<stage::TestHop> hops = {{stages_[0].get(), stages_[0]->layers()},
                                                {stages_[1].get(), stages_[1]->layers()}};
      pipelines_.push_back(std::make_unique<stage::TestPipeline>(
          id, hops, options, std::vector<stage::TestRequest>{}, true));
      memory_.Open(id, ranks_, kBlocks, true, pipelines_.back()->scheduler());
    }
  }
  int64_t Planned() const {
    int64_t bytes = 0;
    for (const KvMemory::Rank& rank : ranks_) bytes += rank.kv_bytes;
    return bytes;
  }
  std::vector<TokenId> Prompt() {
    std::vector<TokenId> prompt;
    for (int i = 0; i < kPromptTokens; ++i)
      prompt.push_back(static_cast<TokenId>(rng_.Between(0, 299)));
    return prompt;
  }

  void Add(stage::TestPipeline& pipeline, RequestId id, std::vector<TokenId> prompt) {
    SamplingParams params;
    params.max_tokens = kOutputTokens;
    ASSERT_TRUE(memory_.Reserve(pipeline.id(), id, kRequestBlocks));
    const Status added = pipeline.scheduler().Add(
        {.id = id,
         .prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompt)),
         .params = std::make_shared<const SamplingParams>(params)},
        Time{});
    ASSERT_TRUE(added.ok()) << added.ToString();
  }

  void TellWorkers() {
    std::vector<ControllerAction> actions;
    outbox_.Take(actions);
    for (const ControllerAction& action : actions) {
      const auto& [to, message] = std::get<SendToWorker>(action);
      const auto& returned = std::get<ReturnBlocks>(message);
      stages_[to.value()]->ReturnBlocks(returned.pipeline, returned.blocks);
    }
  }

  void RunToTheEnd(const std::vector<stage::TestPipeline*>& pipelines) {
    while (std::ranges::any_of(pipelines, [](auto* p) { return p->scheduler().HasWork(); })) {
      (void)memory_.EndRound();
      for (stage::TestPipeline* pipeline : pipelines) {
        (void)memory_.BeforeSteps(pipeline->id());
        TellWorkers();
        pipeline->Schedule();
        for (const auto& stage : stages_) {
          stage::TestPipeline::Step* step = pipeline->ReadyAt(stage.get());
          if (step == nullptr) continue;
          std::vector<stage::StagePart> parts = {pipeline->Begin(*step)};
          ASSERT_TRUE(stage->Run(parts).ok());
          pipeline->Arrived(*step, parts.front());
        }
      }
      most_ = std::max(most_, ResidentBytes());
    }
  }

  model::TestFolder folder_;
  std::vector<std::unique_ptr<stage::ModelStage>> stages_;
  Membership members_;
  Outbox outbox_;
  KvMemory memory_;
  std::vector<KvMemory::Rank> ranks_;
  std::vector<std::unique_ptr<stage::TestPipeline>> pipelines_;
  Rng rng_{1};
  int64_t most_ = 0;
};

// One pipeline fills what was planned. Another one reserves most of it: before it has computed
// anything, the memory of the first one is back with the system.
TEST_F(SharedMemoryTest, OnePipelineHoldsWhatWasPlannedAndGivesItBack) {
  Open(2);
  const int64_t before = ResidentBytes();
  for (uint64_t id = 1; id <= 12; ++id) {
    Add(*pipelines_[0], RequestId(id), Prompt());
    RunToTheEnd({pipelines_[0].get()});
    memory_.Release(PipelineId(1), RequestId(id));
  }
  const int64_t full = ResidentBytes();
  EXPECT_EQ(memory_.limit(PipelineId(1)), kBlocks);
  if (kMeasures) {
    EXPECT_LE(most_ - before, Planned() + Planned() / 10 + kOtherBytes);
  }
  EXPECT_GE(full - before, Planned() * 8 / 10) << "it fills what was planned";

  for (uint64_t id = 1; id <= 6; ++id)
    ASSERT_TRUE(memory_.Reserve(PipelineId(2), RequestId(id), kRequestBlocks));
  (void)memory_.EndRound();
  TellWorkers();
  const int returned = 6 * kRequestBlocks;
  EXPECT_EQ(memory_.limit(PipelineId(1)), kBlocks - returned);
  if (kMeasures) {
    EXPECT_LE(ResidentBytes(), full - Planned() * (returned - 2) / kBlocks);
  }
}

TEST_F(SharedMemoryTest, ManyPipelinesHoldWhatWasPlannedForTheirWorkers) {
  Open(kPipelines);
  const int64_t before = ResidentBytes();
  std::map<std::vector<TokenId>, std::string> answers;
  std::vector<std::vector<TokenId>> prompts(4);
  for (std::vector<TokenId>& prompt : prompts) prompt = Prompt();
  uint64_t hits = 0, next_id = 0;
  for (int round = 0; round < 2; ++round) {
    for (size_t turn = 0; turn < 2 * kPipelines / kTogether; ++turn) {
      const size_t first =
          turn / 2 * kTogether;  // each pipeline twice in a row: prefixes are found
      std::vector<stage::TestPipeline*> now;
      std::vector<std::pair<stage::TestPipeline*, RequestId>> added;
      std::map<RequestId, const std::vector<TokenId>*> prompt_of;
      for (size_t p = first; p < first + kTogether; ++p) {
        now.push_back(pipelines_[p].get());
        const auto& prompt = prompts[(p + static_cast<size_t>(round)) % prompts.size()];
        const RequestId id(++next_id);
        Add(*pipelines_[p], id, prompt);
        added.emplace_back(pipelines_[p].get(), id);
        prompt_of[id] = &prompt;
      }
      RunToTheEnd(now);
      if (testing::Test::HasFailure()) return;
      for (const auto& [pipeline, id] : added) {
        memory_.Release(pipeline->id(), id);
        const std::string& text = pipeline->answers().texts().at({id.value(), 0});
        const auto [answer, fresh] = answers.emplace(*prompt_of.at(id), text);
        EXPECT_EQ(answer->second, text) << "the same prompt has another answer";
      }
    }
  }
  for (const auto& pipeline : pipelines_) hits += pipeline->scheduler().Stats().prefix_hit_tokens;
  int64_t filled = 0;
  for (const KvMemory::Rank& rank : ranks_)
    filled += kPipelines * kRequestBlocks * rank.bytes_per_block;
  ASSERT_GT(filled, 2 * (Planned() + kOtherBytes)) << "without returned blocks it would fit too";
  if (kMeasures) {
    EXPECT_LE(most_ - before, Planned() + Planned() / 10 + kOtherBytes);
  }
  EXPECT_GT(hits, 0u);
}

}  // namespace
}  // namespace millrace::cluster
