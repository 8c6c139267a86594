// Pipelines over stages compared with one process with all layers: the same tokens and the same
// bits of every log-probability, however layers, pipelines and batches are cut.
#include "stage/model_stage.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "model/test_folder.h"
#include "model/test_runner.h"
#include "stage/stage_runner.h"
#include "stage/testing/pipelines.h"

namespace millrace::stage {
namespace {

constexpr TokenId kEos = 7;

sched::SchedulerOptions Roomy() {
  sched::SchedulerOptions o;
  o.block_size = 16;
  o.num_blocks = 400;
  o.max_num_seqs = 16;
  o.max_num_batched_tokens = 48;
  o.max_model_len = 128;
  o.eos_token_ids = {kEos};
  return o;
}

// Few blocks, so that requests are preempted many times.
sched::SchedulerOptions Tight(sched::PreemptionMode preemption) {
  sched::SchedulerOptions o = Roomy();
  o.num_blocks = 22;
  o.num_host_blocks = preemption == sched::PreemptionMode::kSwap ? 40 : 0;
  o.preemption = preemption;
  o.watermark = 0;
  return o;
}

class ModelStageTest : public testing::Test {
 protected:
  // The answers of one process with all layers.
  Answers Expected(const std::string& folder, const std::vector<TestRequest>& requests) {
    auto device = NewTestDevice();
    auto model = LoadTestModel(folder, *device);
    auto runner = StageRunner::Create(std::move(device), std::move(model),
                                      {.num_blocks = 400, .eos_token_ids = {kEos}});
    EXPECT_TRUE(runner.ok()) << runner.status().ToString();
    auto scheduler = std::move(sched::Scheduler::Create(Roomy())).value();
    AddRequests(*scheduler, requests);
    return RunToTheEnd(*scheduler, **runner);
  }

  model::TestFolder folder_;
};

std::vector<std::unique_ptr<ModelStage>> StagesOf(const std::string& path,
                                                  const std::vector<LayerRange>& ranges) {
  std::vector<std::unique_ptr<ModelStage>> stages;
  for (const LayerRange& range : ranges) stages.push_back(NewTestStage(path, {.layers = range}));
  return stages;
}

template <typename T>
std::vector<Stage*> Pointers(const std::vector<std::unique_ptr<T>>& stages) {
  std::vector<Stage*> pointers;
  for (const auto& stage : stages) pointers.push_back(stage.get());
  return pointers;
}

const std::vector<std::vector<LayerRange>> kSplits = {
    {{0, 6}}, {{0, 1}, {1, 6}}, {{0, 5}, {5, 6}}, {{0, 1}, {1, 4}, {4, 6}}};

TEST_F(ModelStageTest, APipelineOverStagesAnswersLikeOneProcess) {
  const auto requests = MixedRequests(20, 1);
  for (const char* shape : {"llama-160m", "qwen3-0.6b", "opt-350m", "gpt2", "pythia-160m"}) {
    const std::string path = MakeTinyModel(folder_.path(), shape);
    const Answers expected = Expected(path, requests);
    for (const auto& split : kSplits) {
      const auto stages = StagesOf(path, split);
      std::vector<TestHop> hops;
      for (const auto& stage : stages) hops.push_back({stage.get(), stage->layers()});
      TestPipeline pipeline(PipelineId(1), hops, Roomy(), requests);
      RunPipelines({&pipeline}, Pointers(stages), Merge::kNever, 5);
      ASSERT_EQ(pipeline.answers().texts(), expected.texts()) << shape << ", " << split.size();
    }
  }
}

// By definition: all states of the prompt at once, the last one or their mean.
std::vector<float> VectorOf(const std::vector<std::vector<float>>& states, Pooling pooling) {
  if (pooling == Pooling::kLast) return states.back();
  std::vector<float> mean;
  for (size_t i = 0; i < states.front().size(); ++i) {
    double sum = 0;
    for (const std::vector<float>& state : states) sum += double{state[i]};
    mean.push_back(static_cast<float>(sum / static_cast<double>(states.size())));
  }
  return mean;
}

TEST_F(ModelStageTest, AVectorIsOfTheStatesThatEnterTheHead) {
  std::vector<TestRequest> requests = MixedRequests(2, 8);
  requests[0].params = requests[1].params = {};
  requests[0].params.pooling = Pooling::kLast;
  requests[1].params.pooling = Pooling::kMean;
  for (TestRequest& r : requests) r.prompt.resize(50, 17);
  sched::SchedulerOptions chunked = Roomy();
  chunked.max_num_batched_tokens = 7;
  for (const char* shape : {"llama-160m", "opt-350m"}) {
    const std::string path = MakeTinyModel(folder_.path(), shape);
    Result<model::TestRunner> whole = model::TestRunner::Open(path);
    ASSERT_TRUE(whole.ok()) << whole.status().ToString();
    auto device = NewTestDevice();
    auto model = LoadTestModel(path, *device);
    auto runner = StageRunner::Create(std::move(device), std::move(model), {.num_blocks = 400});
    auto scheduler = std::move(sched::Scheduler::Create(chunked)).value();
    AddRequests(*scheduler, requests);
    size_t vectors = 0;
    EXPECT_TRUE(RunAlone(*scheduler, **runner, [&](const RequestOutput& out) {
      const TestRequest& asked = requests[out.request.value() - 1];
      const auto states = whole->HeadInputs(asked.prompt);
      EXPECT_EQ(std::ssize(out.pooled), whole->model().spec().embedding_size);
      EXPECT_EQ(out.pooled, VectorOf(states, asked.params.pooling)) << shape;
      ++vectors;
    }));
    EXPECT_EQ(vectors, 2u);
  }
}

// All block operations of a scheduler, in step at every stage.
TEST_F(ModelStageTest, PreemptionByRecomputeAndSwapChangesNothing) {
  const auto requests = MixedRequests(60, 2);
  const std::string path = MakeTinyModel(folder_.path(), "llama-160m");
  const Answers expected = Expected(path, requests);
  EXPECT_GT(expected.tokens(), 500);
  for (const auto mode : {sched::PreemptionMode::kRecompute, sched::PreemptionMode::kSwap}) {
    const auto stages = StagesOf(path, {{0, 2}, {2, 3}, {3, 6}});
    std::vector<TestHop> hops;
    for (const auto& stage : stages) hops.push_back({stage.get(), stage->layers()});
    TestPipeline pipeline(PipelineId(3), hops, Tight(mode), requests);
    RunPipelines({&pipeline}, Pointers(stages), Merge::kNever, 6);
    ASSERT_EQ(pipeline.answers().texts(), expected.texts());
    const sched::SchedulerStats stats = pipeline.scheduler().Stats();
    const bool swaps = mode == sched::PreemptionMode::kSwap;
    EXPECT_GT(swaps ? stats.preemptions_swap : stats.preemptions_recompute, 5u);
    EXPECT_GT(stats.prefix_hit_tokens, 0u);
    EXPECT_GT(stats.copied_blocks, 0u);
  }
}

// Helix section 5: stages overlap, and each pipeline changes stages at its own layers. Pipelines
// share stages; each has KV for its own layers and blocks.
TEST_F(ModelStageTest, PipelinesThatEnterAndLeaveAtDifferentLayersMerge) {
  for (const char* shape : {"llama-160m", "opt-125m"}) {
    const std::string path = MakeTinyModel(folder_.path(), shape, DType::kF32);
    std::vector<std::vector<TestRequest>> requests;
    std::vector<Answers> expected;
    for (uint64_t i = 0; i < 4; ++i) {
      requests.push_back(MixedRequests(14, 10 + i));
      expected.push_back(Expected(path, requests.back()));
    }
    for (const Merge merge : {Merge::kNever, Merge::kAtRandom}) {
      const auto stages = StagesOf(path, {{0, 5}, {1, 6}});
      ModelStage *a = stages[0].get(), *b = stages[1].get();
      sched::SchedulerOptions other_blocks = Roomy();
      other_blocks.block_size = 32;
      TestPipeline early(PipelineId(1), {{a, {0, 2}}, {b, {2, 6}}}, Roomy(), requests[0]);
      TestPipeline late(PipelineId(2), {{a, {0, 5}}, {b, {5, 6}}}, other_blocks, requests[1]);
      TestPipeline middle(PipelineId(3), {{a, {0, 3}}, {b, {3, 6}}},
                          Tight(sched::PreemptionMode::kSwap), requests[2]);
      TestPipeline first(PipelineId(4), {{a, {0, 1}}, {b, {1, 6}}}, Roomy(), requests[3]);
      const std::vector<TestPipeline*> pipelines = {&early, &late, &middle, &first};
      const int merged = RunPipelines(pipelines, Pointers(stages), merge, 7);
      EXPECT_EQ(merged > 50, merge == Merge::kAtRandom) << merged;
      for (size_t i = 0; i < pipelines.size(); ++i) {
        ASSERT_EQ(pipelines[i]->answers().texts(), expected[i].texts())
            << shape << ", pipeline " << i;
      }
    }
  }
}

// One range strictly inside another, three stages deep: rows at a layer may not be adjacent.
TEST_F(ModelStageTest, NestedRangesRunInSeveralGroups) {
  const std::string path = MakeTinyModel(folder_.path(), "llama-160m");
  const auto requests = MixedRequests(12, 21), others = MixedRequests(12, 22),
             thirds = MixedRequests(12, 23);
  const auto stages = StagesOf(path, {{0, 3}, {0, 6}, {3, 6}});
  ModelStage *left = stages[0].get(), *all = stages[1].get(), *right = stages[2].get();
  TestPipeline whole(PipelineId(1), {{all, {0, 6}}}, Roomy(), requests);
  TestPipeline inside(PipelineId(2), {{left, {0, 2}}, {all, {2, 4}}, {right, {4, 6}}}, Roomy(),
                      others);
  TestPipeline ends(PipelineId(3), {{all, {0, 3}}, {right, {3, 6}}}, Roomy(), thirds);
  RunPipelines({&whole, &inside, &ends}, Pointers(stages), Merge::kAtRandom, 8);
  EXPECT_EQ(whole.answers().texts(), Expected(path, requests).texts());
  EXPECT_EQ(inside.answers().texts(), Expected(path, others).texts());
  EXPECT_EQ(ends.answers().texts(), Expected(path, thirds).texts());
}

// A pipeline may request activations between layers. They are those that a stage ending there would
// send, also if parts enter and leave beside it, and if only some layers run.
TEST_F(ModelStageTest, ActivationsInFlightAreThoseOfACutThere) {
  const std::string path = MakeTinyModel(folder_.path(), "llama-160m");
  const std::vector<TokenId> tokens = {5, 17, 250, 3, 3, 9};
  StepPlan plan{.id = StepId(1), .tokens = tokens, .blocks = {1}};
  plan.started = {{SequenceId(1), std::make_shared<SamplingParams>(), 1,
                   std::make_shared<std::vector<TokenId>>(tokens)}};
  plan.sequences = {{.id = SequenceId(1), .num_tokens = 6, .num_new_blocks = 1}};
  const auto cut_at = [&](int layer) {
    const auto stage = NewTestStage(path, {.layers = LayerRange{0, layer}});
    EXPECT_TRUE(
        stage->OpenPipeline(PipelineId(1), {.layers = {0, layer}, .num_blocks = 2, .first = true})
            .ok());
    SequenceTables tables;
    StagePart part{.pipeline = PipelineId(1), .plan = &plan, .sequences = tables.Advance(plan)};
    EXPECT_TRUE(stage->Run({&part, 1}).ok() && part.result.error.ok());
    return part.output;
  };
  const auto stage = NewTestStage(path);
  StagePipeline pipeline{.layers = {0, 6}, .num_blocks = 2, .first = true, .last = true};
  pipeline.cache_activations_at = {2, 5};
  ASSERT_TRUE(stage->OpenPipeline(PipelineId(1), pipeline).ok());
  ASSERT_TRUE(
      stage->OpenPipeline(PipelineId(2), {.layers = {0, 3}, .num_blocks = 2, .first = true}).ok());
  SequenceTables tables;
  const auto sequences = tables.Advance(plan);
  std::vector<StagePart> parts = {{PipelineId(1), &plan, sequences},
                                  {PipelineId(2), &plan, sequences}};
  ASSERT_TRUE(stage->Run(parts).ok() && parts[0].result.error.ok());
  ASSERT_EQ(parts[0].inner_activations.size(), 2u);
  for (const EnteringActivations& inner : parts[0].inner_activations) {
    EXPECT_EQ(inner.rows, cut_at(inner.layer)) << "layer " << inner.layer;
  }
  EXPECT_TRUE(parts[1].inner_activations.empty());
  EXPECT_EQ(parts[1].output, cut_at(3));

  // The same tokens at layers [2, 5) alone.
  StepPlan again = plan;
  again.started.clear();
  again.blocks.clear();
  again.sequences[0].keep_blocks = 1;
  again.sequences[0].num_new_blocks = 0;
  const std::vector<std::byte> entering = cut_at(2);
  StagePart some{PipelineId(1), &again, tables.Advance(again), entering};
  some.layers = LayerRange{2, 5};
  ASSERT_TRUE(stage->Run({&some, 1}).ok());
  ASSERT_TRUE(some.result.error.ok()) << some.result.error.ToString();
  EXPECT_TRUE(some.inner_activations.empty()) << "at both ends they are its input and its output";
  EXPECT_EQ(some.output, cut_at(5));
}

// A merged batch of more rows than the model takes is run in several.
TEST_F(ModelStageTest, ATooLargeBatchIsSplit) {
  const std::string path = MakeTinyModel(folder_.path(), "llama-160m");
  const auto stage = NewTestStage(path, {.max_batched_tokens = 48, .threads = 2});
  std::vector<std::unique_ptr<TestPipeline>> pipelines;
  std::vector<TestPipeline*> pointers;
  std::vector<std::vector<TestRequest>> requests;
  for (uint64_t i = 0; i < 5; ++i) {
    requests.push_back(MixedRequests(8, 30 + i));
    pipelines.push_back(std::make_unique<TestPipeline>(
        PipelineId(i + 1), std::vector<TestHop>{{stage.get(), {0, 6}}}, Roomy(), requests.back()));
    pointers.push_back(pipelines.back().get());
  }
  RunPipelines(pointers, {stage.get()}, Merge::kAtRandom, 9);
  for (size_t i = 0; i < pipelines.size(); ++i) {
    EXPECT_EQ(pipelines[i]->answers().texts(), Expected(path, requests[i]).texts()) << i;
  }
}

// Activations come from another process: a part that does not fit fails, and only it.
TEST_F(ModelStageTest, APartThatDoesNotFitFailsAlone) {
  const std::string path = MakeTinyModel(folder_.path(), "llama-160m");
  const auto stage = NewTestStage(path);
  StepPlan plan{.id = StepId(9), .tokens = {17, 17, 17}, .blocks = {2}};
  plan.started = {{SequenceId(1), std::make_shared<const SamplingParams>(), 5,
                   std::make_shared<const std::vector<TokenId>>(3, 17)}};
  plan.sequences = {{SequenceId(1), 0, 3, 0, 0, 0, 1, LogitsWanted::kLast}};
  SequenceTables tables;
  const StagePart good{PipelineId(2), &plan, tables.Advance(plan)};
  const std::vector<std::byte> rows(4 * stage->row_bytes());
  std::vector<StagePart> bad(3, good);
  bad[0].input = rows;
  bad[1].input = rows;
  bad[1].layers = LayerRange{1, 6};
  bad[2].layers = LayerRange{0, 7};
  const StagePipeline options{.layers = {0, 6}, .num_blocks = 4, .first = true, .last = true};
  for (size_t i = 0; i < bad.size(); ++i) {
    for (const uint64_t id : {1, 2}) ASSERT_TRUE(stage->OpenPipeline(PipelineId(id), options).ok());
    std::vector<StagePart> parts(3, good);
    parts[0] = bad[i];
    parts[0].pipeline = PipelineId(1);
    parts[2].pipeline = PipelineId(1000);
    ASSERT_TRUE(stage->Run(parts).ok());
    EXPECT_EQ(parts[0].result.error.code(), StatusCode::kInvalidArgument) << i;
    EXPECT_TRUE(parts[0].result.sequences.empty()) << i;
    ASSERT_TRUE(parts[1].result.error.ok()) << parts[1].result.error.ToString();
    EXPECT_TRUE(parts[1].result.sequences.at(0).token.has_value());
    EXPECT_EQ(parts[1].result.id, StepId(9));
    EXPECT_EQ(parts[2].result.error.code(), StatusCode::kNotFound);
    // Its KV lacks the step's tokens: it runs no more.
    StagePart again = good;
    again.pipeline = PipelineId(1);
    ASSERT_TRUE(stage->Run({&again, 1}).ok());
    EXPECT_FALSE(again.result.error.ok()) << i;
    for (const uint64_t id : {1, 2}) stage->ClosePipeline(PipelineId(id));
  }
}

TEST_F(ModelStageTest, RefusesInvalidPipelines) {
  const std::string path = MakeTinyModel(folder_.path(), "gpt2");
  const auto stage = NewTestStage(path, {.layers = LayerRange{2, 5}});
  const StagePipeline good{.layers = {2, 4}, .num_blocks = 4};
  const auto code = [&](auto edit) {
    StagePipeline pipeline = good;
    edit(pipeline);
    return stage->OpenPipeline(PipelineId(1), pipeline).code();
  };
  using L = StagePipeline&;
  EXPECT_EQ(code([](L l) { l.layers = {1, 4}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](L l) { l.layers = {2, 6}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](L l) { l.layers = {3, 3}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](L l) { l.first = true; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](L l) { l.last = true; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](L l) { l.block_size = 20; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](L l) { l.num_blocks = 0; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](L l) { l.eos_token_ids = {300}; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](L l) { l.num_blocks = 1 << 30; }), StatusCode::kResourceExhausted);
  EXPECT_EQ(code([](L) {}), StatusCode::kOk);
  EXPECT_EQ(code([](L) {}), StatusCode::kFailedPrecondition);
  stage->ClosePipeline(PipelineId(1));
  stage->ClosePipeline(PipelineId(1));
  EXPECT_EQ(code([](L) {}), StatusCode::kOk);
}

}  // namespace
}  // namespace millrace::stage
