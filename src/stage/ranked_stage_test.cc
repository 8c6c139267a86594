// Stages of several tensor-parallel ranks, each on a thread with its own device: pipelines through
// them answer like one process, and a failure of their collective fails their batch.
#include <gtest/gtest.h>

#include <thread>

#include "model/test_folder.h"
#include "net/testing/in_process_collective.h"
#include "stage/stage_runner.h"
#include "stage/testing/pipelines.h"

namespace millrace::stage {
namespace {

constexpr TokenId kRankedEos = 7;

sched::SchedulerOptions Options() {
  sched::SchedulerOptions o;
  o.block_size = 16;
  o.num_blocks = 30;  // few: requests are preempted
  o.num_host_blocks = 40;
  o.preemption = sched::PreemptionMode::kSwap;
  o.watermark = 0;
  o.max_num_seqs = 16;
  o.max_num_batched_tokens = 48;
  o.max_model_len = 128;
  o.eos_token_ids = {kRankedEos};
  return o;
}

// All ranks of a stage as one Stage: a batch runs on all of them at once, as workers do it.
class RankedStage : public Stage {
 public:
  RankedStage(const std::string& folder, LayerRange layers, int size)
      : collectives_(*net::NewInProcessCollectives(size, Duration::Seconds(60))) {
    for (int r = 0; r < size; ++r) {
      auto device = NewTestDevice();
      auto model = model::Model::Load(folder, *device,
                                      {.layers = layers,
                                       .tensor_rank = {r, size},
                                       .collective = collectives_[static_cast<size_t>(r)].get(),
                                       .max_batched_tokens = 64,
                                       .max_logits_rows = 8});
      EXPECT_TRUE(model.ok()) << model.status().ToString();
      ranks_.push_back(std::make_unique<ModelStage>(std::move(device), std::move(*model)));
    }
  }

  LayerRange layers() const override { return ranks_[0]->layers(); }
  size_t row_bytes() const override { return ranks_[0]->row_bytes(); }
  std::pair<int, int> kv_heads() const override { return ranks_[0]->kv_heads(); }
  int model_kv_heads() const override { return ranks_[0]->model_kv_heads(); }
  StageLimits limits() const override { return ranks_.front()->limits(); }
  Status OpenPipeline(PipelineId pipeline, const StagePipeline& options) override {
    for (auto& rank : ranks_) MR_RETURN_IF_ERROR(rank->OpenPipeline(pipeline, options));
    return OkStatus();
  }
  void ClosePipeline(PipelineId pipeline) override {
    for (auto& rank : ranks_) rank->ClosePipeline(pipeline);
  }
  Status Run(std::span<StagePart> parts) override {
    std::vector<std::vector<StagePart>> copies(ranks_.size(), {parts.begin(), parts.end()});
    std::vector<Status> statuses(ranks_.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      threads.emplace_back([&, r] { statuses[r] = ranks_[r]->Run(copies[r]); });
    }
    for (std::thread& t : threads) t.join();
    for (size_t i = 0; i < parts.size(); ++i) {
      for (size_t r = 1; r < ranks_.size(); ++r) {
        EXPECT_EQ(copies[r][i].output, copies[0][i].output) << "rank " << r;
        EXPECT_TRUE(copies[r][i].result.sequences.empty() || !statuses[0].ok()) << "rank " << r;
      }
      parts[i].output = copies[0][i].output;
      parts[i].result = copies[0][i].result;
    }
    for (Status& status : statuses) MR_RETURN_IF_ERROR(status);
    return OkStatus();
  }
  size_t KvBytes(const KvBox& box) const override { return ranks_[0]->KvBytes(box); }
  Status ReadKv(PipelineId, const KvBox&, std::span<const BlockIndex>,
                std::span<std::byte>) const override {
    return Unimplemented("ask a rank");
  }
  Status WriteKv(PipelineId, const KvBox&, std::span<const BlockIndex>,
                 std::span<const std::byte>) override {
    return Unimplemented("ask a rank");
  }

  ModelStage& rank(int r) { return *ranks_[static_cast<size_t>(r)]; }
  net::Collective& collective(int r) { return *collectives_[static_cast<size_t>(r)]; }
  void RenewCollectives() {
    auto next = *net::NewInProcessCollectives(static_cast<int>(ranks_.size()));
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r]->UseCollective(*next[r]);
    collectives_ = std::move(next);
  }

 private:
  std::vector<std::unique_ptr<net::Collective>> collectives_;
  std::vector<std::unique_ptr<ModelStage>> ranks_;
};

Answers AnswersOfOneProcess(const std::string& folder, const std::vector<TestRequest>& requests) {
  auto device = NewTestDevice();
  auto model = LoadTestModel(folder, *device);
  auto runner =
      StageRunner::Create(std::move(device), std::move(model),
                          {.num_blocks = 30, .num_host_blocks = 40, .eos_token_ids = {kRankedEos}});
  EXPECT_TRUE(runner.ok()) << runner.status().ToString();
  auto scheduler = std::move(sched::Scheduler::Create(Options())).value();
  AddRequests(*scheduler, requests);
  return RunToTheEnd(*scheduler, **runner);
}

TEST(RankedStage, PipelinesThroughRanksAnswerLikeOneProcess) {
  model::TestFolder folder;
  const auto requests = MixedRequests(12, 5), others = MixedRequests(8, 6);
  for (const char* shape : {"llama-160m", "pythia-160m"}) {
    const std::string path = MakeTinyModel(folder.path(), shape);
    const Answers expected = AnswersOfOneProcess(path, requests);
    const Answers others_expected = AnswersOfOneProcess(path, others);
    // Two ranks, then four, then two; a pipeline that enters in between shares the ends.
    RankedStage first(path, {0, 2}, 2), middle(path, {2, 4}, 4), last(path, {3, 6}, 2);
    TestPipeline pipeline(PipelineId(1), {{&first, {0, 2}}, {&middle, {2, 4}}, {&last, {4, 6}}},
                          Options(), requests);
    TestPipeline other(PipelineId(2), {{&first, {0, 2}}, {&middle, {2, 3}}, {&last, {3, 6}}},
                       Options(), others);
    RunPipelines({&pipeline, &other}, {&first, &middle, &last}, Merge::kAtRandom, 5);
    ASSERT_EQ(pipeline.answers().texts(), expected.texts()) << shape;
    ASSERT_EQ(other.answers().texts(), others_expected.texts()) << shape;
  }
}

StepPlan OneToken(uint64_t id, SequenceStart start) {
  StepPlan plan;
  plan.id = StepId(id);
  SequenceStep step;
  step.id = start.id;
  step.num_tokens = 1;
  step.num_new_blocks = 1;
  step.logits = LogitsWanted::kLast;
  plan.started.push_back(std::move(start));
  plan.tokens = {5};
  plan.blocks = {0};
  plan.sequences.push_back(std::move(step));
  return plan;
}

TEST(RankedStage, AnEndedCollectiveFailsTheBatchUntilThereIsANewOne) {
  model::TestFolder folder;
  RankedStage stage(MakeTinyModel(folder.path(), "llama-160m"), {0, 6}, 2);
  const StagePipeline pipeline{.layers = {0, 6},
                               .num_blocks = 8,
                               .first = true,
                               .last = true,
                               .eos_token_ids = {kRankedEos}};
  SequenceStart start;
  start.id = SequenceId(1);
  start.prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{5});
  start.params = std::make_shared<const SamplingParams>();
  const StepPlan plan = OneToken(1, start);
  const auto run = [&](PipelineId id) {
    SequenceTables tables;
    StagePart part{.pipeline = id, .plan = &plan, .sequences = tables.Advance(plan)};
    const Status opened = stage.OpenPipeline(id, pipeline);
    EXPECT_TRUE(opened.ok()) << opened.ToString();
    const Status ran = stage.Run({&part, 1});
    if (ran.ok()) {
      EXPECT_TRUE(part.result.error.ok()) << part.result.error.ToString();
      EXPECT_EQ(part.result.sequences.size(), 1u);
      EXPECT_TRUE(!part.result.sequences.empty() && part.result.sequences[0].token.has_value());
    }
    return ran;
  };
  EXPECT_TRUE(run(PipelineId(1)).ok());
  stage.collective(1).Abort("a test");
  EXPECT_EQ(run(PipelineId(2)).code(), StatusCode::kUnavailable);
  EXPECT_EQ(run(PipelineId(3)).code(), StatusCode::kUnavailable);
  stage.RenewCollectives();
  EXPECT_TRUE(run(PipelineId(4)).ok());
}

// The heads of a box, rank by rank, are the box of the whole model.
TEST(RankedStage, RanksHoldTheKvHeadsOfTheWhole) {
  model::TestFolder folder;
  const std::string path = MakeTinyModel(folder.path(), "llama-160m");
  RankedStage ranked(path, {0, 6}, 2);
  const auto whole = NewTestStage(path);
  const StagePipeline pipeline{.layers = {0, 6},
                               .num_blocks = 8,
                               .first = true,
                               .last = true,
                               .eos_token_ids = {kRankedEos}};
  ASSERT_TRUE(ranked.OpenPipeline(PipelineId(1), pipeline).ok() &&
              whole->OpenPipeline(PipelineId(1), pipeline).ok());
  SequenceStart start;
  start.id = SequenceId(1);
  start.prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{5});
  start.params = std::make_shared<const SamplingParams>();
  const StepPlan plan = OneToken(1, start);
  for (Stage* stage : {static_cast<Stage*>(&ranked), static_cast<Stage*>(whole.get())}) {
    SequenceTables tables;
    StagePart part{.pipeline = PipelineId(1), .plan = &plan, .sequences = tables.Advance(plan)};
    const Status ran = stage->Run({&part, 1});
    ASSERT_TRUE(ran.ok() && part.result.error.ok()) << ran.ToString();
  }
  const std::vector<BlockIndex> blocks = {0};
  for (int r = 0; r < 2; ++r) {
    const auto [first, end] = ranked.rank(r).kv_heads();
    EXPECT_EQ(end - first, 2);
    const KvBox box{{1, 4}, first, end, 0, 1};
    std::vector<std::byte> mine(ranked.rank(r).KvBytes(box)), theirs(whole->KvBytes(box));
    ASSERT_TRUE(ranked.rank(r).ReadKv(PipelineId(1), box, blocks, mine).ok());
    ASSERT_TRUE(whole->ReadKv(PipelineId(1), box, blocks, theirs).ok());
    EXPECT_EQ(mine, theirs) << r;
    const KvBox others{{1, 4}, 0, 4, 0, 1};
    EXPECT_FALSE(ranked.rank(r).ReadKv(PipelineId(1), others, blocks, mine).ok());
  }
}

}  // namespace
}  // namespace millrace::stage
