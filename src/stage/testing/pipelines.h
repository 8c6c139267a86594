// For tests: pipelines through stages in this process, each with the production scheduler, driven
// in an order that a seed chooses; and the output of their requests in a comparable form.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "model/make_model.h"
#include "model/model.h"
#include "model/shapes.h"
#include "sched/scheduler.h"
#include "stage/model_stage.h"
#include "stage/run_alone.h"
#include "stage/stage.h"
#include "tensor/cpu/cpu_device.h"

namespace millrace::stage {

// A model folder of `shape`, narrow, with six layers.
inline std::string MakeTinyModel(const std::string& parent, const std::string& shape,
                                 DType dtype = DType::kBF16) {
  const std::string path = parent + "/" + shape + DTypeName(dtype);
  const model::ShapeNumbers tiny = {
      .layers = 6, .hidden = 32, .heads = 4, .vocab = 300, .positions = 160};
  const Status made =
      model::MakeModel(*model::ShapeConfig(shape, tiny), path, {.seed = 11, .dtype = dtype});
  EXPECT_TRUE(made.ok()) << made.ToString();
  return path;
}

struct TestStageOptions {
  std::optional<LayerRange> layers;  // unset: all
  int max_batched_tokens = 64;
  int threads = 1;
  size_t kv_ahead_bytes = size_t{1} << 20;  // so that memory is populated while batches run
};

inline std::unique_ptr<tensor::Device> NewTestDevice(int threads = 1) {
  return *tensor::NewCpuDevice({.threads = threads, .pin_threads = false});
}

inline std::unique_ptr<model::Model> LoadTestModel(const std::string& folder,
                                                   tensor::Device& device,
                                                   const TestStageOptions& options = {}) {
  auto model = model::Model::Load(folder, device,
                                  {.layers = options.layers,
                                   .max_batched_tokens = options.max_batched_tokens,
                                   .max_logits_rows = 8});
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return std::move(*model);
}

inline std::unique_ptr<ModelStage> NewTestStage(const std::string& folder,
                                                const TestStageOptions& options = {}) {
  auto device = NewTestDevice(options.threads);
  auto model = LoadTestModel(folder, *device, options);
  return std::make_unique<ModelStage>(std::move(device), std::move(model), options.kv_ahead_bytes);
}

struct TestRequest {
  std::vector<TokenId> prompt;
  SamplingParams params;
  uint64_t seed = 0;
};

// Greedy and seeded requests, with penalties, bans, several answers, log-probabilities; prompts
// have common beginnings.
inline std::vector<TestRequest> MixedRequests(int count, uint64_t seed, int vocab = 300) {
  Rng rng(seed);
  const auto pick = [&](int low, int high) { return static_cast<int>(rng.Between(low, high)); };
  std::vector<TestRequest> requests(static_cast<size_t>(count));
  for (TestRequest& r : requests) {
    const int family = pick(0, 2), shared = pick(0, 40), own = pick(1, 20);
    for (int i = 0; i < shared; ++i) r.prompt.push_back((family * 31 + i * 7) % vocab);
    for (int i = 0; i < own; ++i) r.prompt.push_back(pick(0, vocab - 1));
    SamplingParams& p = r.params;
    p.max_tokens = pick(1, 24);
    p.temperature = pick(0, 1) == 0 ? 0.0 : 0.9;
    if (pick(0, 2) == 0) p.top_k = pick(1, 40);
    if (pick(0, 2) == 0) p.top_p = 0.8;
    if (pick(0, 2) == 0) p.repetition_penalty = 1.3;
    if (pick(0, 3) == 0) p.frequency_penalty = 0.5;
    if (pick(0, 3) == 0) p.presence_penalty = 0.4;
    if (pick(0, 3) == 0) p.min_tokens = *p.max_tokens / 2;
    if (pick(0, 3) == 0) p.logit_bias = {{pick(0, vocab - 1), 2.0f}};
    if (pick(0, 2) == 0) p.logprobs = pick(0, 3);
    if (pick(0, 4) == 0) p.prompt_logprobs = pick(0, 2);
    if (pick(0, 3) == 0) p.n = pick(2, 3);
    r.seed = rng.Next();
    // Not drawn from `rng`, so that the other requests stay the same.
    const bool alone = p.n == 1 && !p.logprobs && !p.prompt_logprobs;
    if (alone && r.seed % 3 == 0) p.pooling = r.seed % 2 == 0 ? Pooling::kLast : Pooling::kMean;
  }
  return requests;
}

// Everything that a client can see of one sequence, bit for bit.
inline std::string Describe(const PositionLogprobs& p) {
  std::string text;
  const auto add = [&](const TokenLogprob& t) {
    text += std::to_string(t.token) + ":" + std::to_string(std::bit_cast<uint32_t>(t.logprob)) +
            "#" + std::to_string(t.rank) + " ";
  };
  add(p.chosen);
  for (const TokenLogprob& t : p.top) add(t);
  return text;
}

class Answers {
 public:
  void Add(const RequestOutput& out) {
    std::string& text = texts_[{out.request.value(), out.index}];
    for (const auto& p : out.prompt_logprobs) text += "prompt " + Describe(p);
    for (const float number : out.pooled) {
      text += std::to_string(std::bit_cast<uint32_t>(number)) + " ";
    }
    for (size_t i = 0; i < out.tokens.size(); ++i) {
      text += std::to_string(out.tokens[i]) + " ";
      if (i < out.logprobs.size()) text += "(" + Describe(out.logprobs[i]) + ") ";
    }
    tokens_ += static_cast<int64_t>(out.tokens.size());
    if (out.finish) text += std::string(FinishReasonName(*out.finish)) + out.error.message();
  }
  int64_t tokens() const { return tokens_; }
  const std::map<std::pair<uint64_t, int>, std::string>& texts() const { return texts_; }

 private:
  std::map<std::pair<uint64_t, int>, std::string> texts_;
  int64_t tokens_ = 0;
};

inline void AddRequests(sched::Scheduler& scheduler, const std::vector<TestRequest>& requests) {
  uint64_t id = 1;
  for (const TestRequest& r : requests) {
    const Status added =
        scheduler.Add({.id = RequestId(id++),
                       .prompt = std::make_shared<const std::vector<TokenId>>(r.prompt),
                       .params = std::make_shared<const SamplingParams>(r.params),
                       .seed = r.seed},
                      Time{});
    ASSERT_TRUE(added.ok()) << added.ToString();
  }
}

// The answers of one stage with all layers, without a cluster.
inline Answers RunToTheEnd(sched::Scheduler& scheduler, StageRunner& runner) {
  Answers answers;
  EXPECT_TRUE(RunAlone(scheduler, runner, [&](RequestOutput&& out) { answers.Add(out); }))
      << "there is work but no step to run";
  scheduler.CheckIntegrity();
  return answers;
}

struct TestHop {
  Stage* stage = nullptr;
  LayerRange layers;
};

// One pipeline and its scheduler; `Pipelines` moves its steps.
class TestPipeline {
 public:
  TestPipeline(PipelineId id, std::vector<TestHop> hops, sched::SchedulerOptions options,
               const std::vector<TestRequest>& requests, bool shares_memory = false)
      : id_(id), hops_(std::move(hops)), tables_(hops_.size()) {
    options.stages = static_cast<int>(hops_.size());
    scheduler_ = std::move(sched::Scheduler::Create(options)).value();
    for (size_t i = 0; i < hops_.size(); ++i) {
      const Status opened =
          hops_[i].stage->OpenPipeline(id, {.layers = hops_[i].layers,
                                            .block_size = options.block_size,
                                            .num_blocks = options.num_blocks,
                                            .num_host_blocks = options.num_host_blocks,
                                            .first = i == 0,
                                            .last = i + 1 == hops_.size(),
                                            .eos_token_ids = options.eos_token_ids,
                                            .shares_memory = shares_memory});
      EXPECT_TRUE(opened.ok()) << opened.ToString();
    }
    AddRequests(*scheduler_, requests);
  }
  ~TestPipeline() {
    for (const TestHop& hop : hops_) hop.stage->ClosePipeline(id_);
  }

  struct Step {
    StepPlan plan;
    size_t hop = 0;  // the hop where it waits to run
    std::vector<std::byte> rows;
    StepResult result;
  };

  PipelineId id() const { return id_; }
  sched::Scheduler& scheduler() { return *scheduler_; }
  const Answers& answers() const { return answers_; }

  // Takes one more step from the scheduler, if there is one.
  bool Schedule() {
    const StepPlan* plan = scheduler_->Schedule(Time{});
    if (plan == nullptr) return false;
    steps_.push_back({.plan = *plan});
    return true;
  }
  // The step that may run at `stage` now: each hop takes steps in order.
  Step* ReadyAt(const Stage* stage) {
    for (size_t i = 0; i < steps_.size(); ++i) {
      Step& step = steps_[i];
      const bool follows = i == 0 || steps_[i - 1].hop > step.hop;
      if (step.hop < hops_.size() && hops_[step.hop].stage == stage && follows) return &step;
    }
    return nullptr;
  }
  // The step at its hop, where it now runs.
  StagePart Begin(const Step& step) {
    return {.pipeline = id_,
            .plan = &step.plan,
            .sequences = tables_[step.hop].Advance(step.plan),
            .input = step.rows,
            .output = {},
            .result = {}};
  }
  void Arrived(Step& step, StagePart& part) {
    ASSERT_TRUE(part.result.error.ok()) << part.result.error.ToString();
    step.rows = std::move(part.output);
    step.result = std::move(part.result);
    ++step.hop;
    while (!steps_.empty() && steps_.front().hop == hops_.size()) {
      std::vector<RequestOutput> outputs;
      scheduler_->Commit(steps_.front().result, Time{}, outputs);
      for (const RequestOutput& out : outputs) answers_.Add(out);
      steps_.pop_front();
    }
  }

 private:
  const PipelineId id_;
  const std::vector<TestHop> hops_;
  std::vector<SequenceTables> tables_;  // by hop
  std::unique_ptr<sched::Scheduler> scheduler_;
  std::deque<Step> steps_;
  Answers answers_;
};

// How many pipelines' steps a stage runs together.
enum class Merge { kNever, kAtRandom };

// Runs all pipelines to the end, stages in the order that the seed chooses; returns the number of
// batches with more than one part.
inline int RunPipelines(const std::vector<TestPipeline*>& pipelines,
                        const std::vector<Stage*>& stages, Merge merge, uint64_t seed) {
  Rng rng(seed);
  const auto has_work = [](TestPipeline* pipeline) { return pipeline->scheduler().HasWork(); };
  int merged = 0;
  while (std::any_of(pipelines.begin(), pipelines.end(), has_work)) {
    for (TestPipeline* pipeline : pipelines) {
      if (rng.Between(0, 2) > 0) pipeline->Schedule();
    }
    Stage* stage =
        stages[static_cast<size_t>(rng.Between(0, static_cast<int64_t>(stages.size()) - 1))];
    std::vector<std::pair<TestPipeline*, TestPipeline::Step*>> chosen;
    std::vector<StagePart> parts;
    for (TestPipeline* pipeline : pipelines) {
      TestPipeline::Step* step = pipeline->ReadyAt(stage);
      if (step == nullptr || rng.Between(0, 3) == 0) continue;
      if (merge == Merge::kNever && !parts.empty()) break;
      chosen.emplace_back(pipeline, step);
      parts.push_back(pipeline->Begin(*step));
    }
    if (parts.empty()) continue;
    merged += parts.size() > 1;
    const Status ran = stage->Run(parts);
    EXPECT_TRUE(ran.ok()) << ran.ToString();
    for (size_t i = 0; i < parts.size(); ++i) chosen[i].first->Arrived(*chosen[i].second, parts[i]);
    if (testing::Test::HasFatalFailure()) break;
  }
  return merged;
}

}  // namespace millrace::stage
