#include "cluster/control/pipelines/pipelines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/test_time.h"
#include "cluster/control/testing/sent.h"

namespace millrace::cluster {
namespace {

// Pipelines over layouts whose stages are loaded as the test says. No worker answers by itself.
class PipelinesTest : public ::testing::Test {
 protected:
  PipelinesTest() {
    for (uint64_t worker = 1; worker <= 4; ++worker) {
      Join join;
      join.name = "w" + std::to_string(worker);
      members_.Add(WorkerId(worker), ConnectionId(worker), std::move(join), {});
    }
  }

  static PipelinesOptions Options() {
    PipelinesOptions options;
    options.scheduler.block_size = 4;
    options.scheduler.max_model_len = 64;
    options.scheduler.max_num_seqs = 2;
    options.num_layers = 4;
    return options;
  }
  // One chain of even stages, filled with workers 1, 2, ... and loaded. A worker's shard has its
  // number plus `first_shard`.
  static Layout Loaded(int stages, int tensor_parallel = 1, uint64_t first_shard = 0) {
    Layout layout = MakeLayout(EvenPlan("m", 4, stages, tensor_parallel), {}).value();
    uint64_t worker = 0;
    for (LayoutStage& stage : layout.stages) {
      for (Slot& slot : stage.ranks) Load(slot, ++worker, first_shard);
    }
    return layout;
  }
  static void Load(Slot& slot, uint64_t worker, uint64_t first_shard) {
    slot.worker = WorkerId(worker);
    slot.shard = ShardId(first_shard + worker);
    slot.asked = slot.loaded = true;
    slot.facts.kv_bytes_per_token_layer = 8;
    slot.facts.kv_bytes = 8 * 4 * 64;  // 64 tokens in 4 layers
  }
  Pipeline* For(const Layout& layout) {
    const PlannedPipeline& planned = layout.pipelines.front();
    return pipelines_.FindOrOpen(layout, planned.route, planned.role, now_);
  }
  // Opens it at all of its workers.
  Pipeline& Opened(const Layout& layout) {
    Pipeline& pipeline = *For(layout);
    for (const std::vector<WorkerId>& hop : pipeline.workers) {
      for (WorkerId worker : hop) EXPECT_TRUE(pipelines_.Opened(pipeline, worker, now_));
    }
    EXPECT_TRUE(pipelines_.Tested(pipeline));
    (void)Sent<PipelineStep>();
    EXPECT_TRUE(pipeline.open);
    return pipeline;
  }
  void Add(Pipeline& pipeline, uint64_t request, int prompt_tokens = 3) {
    sched::NewRequest added{.id = RequestId(request)};
    added.prompt =
        std::make_shared<const std::vector<TokenId>>(prompt_tokens, static_cast<TokenId>(request));
    added.params = std::make_shared<const SamplingParams>();
    ASSERT_TRUE(pipeline.scheduler->Add(std::move(added), now_).ok());
    pipelines_.Touch(pipeline.id);
  }
  void FormSteps() {
    (void)pipelines_.FormSteps(now_,
                               [this](Pipeline& pipeline) { formed_.push_back(pipeline.id); });
    pipelines_.CheckIntegrity();
  }
  void EndStep(Pipeline& pipeline, const PipelineStep& step) {
    StepResult result{.id = step.plan->id};
    for (const SequenceStep& s : step.plan->sequences) {
      result.sequences.push_back({.id = s.id, .token = 9});
    }
    EXPECT_TRUE(pipelines_.Commit(pipeline, result, now_, outputs_).ok());
  }
  // The messages of one kind since the last call, by worker.
  template <typename T>
  std::vector<std::pair<ConnectionId, T>> Sent() {
    std::vector<ControllerAction> actions;
    outbox_.Take(actions);
    return testing::SentOf<T>(actions);
  }

  Membership members_{MembershipOptions{}};
  IdSource ids_{Term(1)};
  Outbox outbox_{members_};
  KvMemory memory_{outbox_};
  Pipelines pipelines_{Options(), members_, ids_, outbox_, memory_};
  Time now_;
  std::vector<PipelineId> formed_;
  std::vector<RequestOutput> outputs_;
};

TEST_F(PipelinesTest, OpensAtEveryWorkerOfItsRoute) {
  Layout layout = Loaded(2);
  layout.stages[1].ranks[0].loaded = false;
  EXPECT_EQ(For(layout), nullptr);
  layout.stages[1].ranks[0].loaded = true;
  layout.stages[1].ranks[0].facts.kv_bytes /= 2;
  Pipeline* pipeline = For(layout);
  ASSERT_NE(pipeline, nullptr);
  EXPECT_EQ(For(layout), pipeline) << "it is opened once";
  EXPECT_EQ(pipelines_.opened(), 1u);
  const auto orders = Sent<OpenPipeline>();
  ASSERT_EQ(orders.size(), 2u);
  for (size_t hop = 0; hop < 2; ++hop) {
    const auto& [worker, order] = orders[hop];
    EXPECT_EQ(worker, ConnectionId(hop + 1));
    EXPECT_EQ(order.hop, static_cast<int>(hop));
    EXPECT_EQ(order.hops.size(), 2u);
    EXPECT_EQ(order.num_blocks, 16) << "as many as fit at the hop with the least memory";
    EXPECT_EQ(order.cache_activations_at, hop == 0 ? std::vector<int>{2} : std::vector<int>{});
  }
  EXPECT_TRUE(pipelines_.Opened(*pipeline, WorkerId(2), now_));
  EXPECT_FALSE(pipelines_.Opened(*pipeline, WorkerId(2), now_)) << "a second answer";
  EXPECT_FALSE(pipelines_.Opened(*pipeline, WorkerId(3), now_)) << "not a worker of it";
  EXPECT_FALSE(pipeline->open);
  EXPECT_TRUE(Sent<PipelineStep>().empty());
  EXPECT_TRUE(pipelines_.Opened(*pipeline, WorkerId(1), now_));
  EXPECT_FALSE(pipeline->open);
  const auto tests = Sent<PipelineStep>();
  ASSERT_EQ(tests.size(), 1u);
  EXPECT_EQ(tests[0].first, ConnectionId(1));
  EXPECT_TRUE(tests[0].second.plan->IsTest());
  EXPECT_TRUE(pipelines_.Tested(*pipeline));
  EXPECT_TRUE(pipeline->open);
  EXPECT_FALSE(pipelines_.Tested(*pipeline)) << "a second answer";
}

TEST_F(PipelinesTest, APrefillPipelineCachesActivationsWhereDecodePipelinesSplit) {
  Plan plan{.num_layers = 4};
  plan.stages = {{.layers = {0, 4}, .role = StageRole::kPrefill},
                 {.layers = {0, 1}, .role = StageRole::kDecode},
                 {.layers = {1, 4}, .role = StageRole::kDecode}};
  Layout layout = MakeLayout(plan, {}).value();
  uint64_t worker = 0;
  for (LayoutStage& stage : layout.stages) Load(stage.ranks[0], ++worker, 0);
  ASSERT_NE(For(layout), nullptr);
  const auto orders = Sent<OpenPipeline>();
  ASSERT_EQ(orders.size(), 1u);
  EXPECT_EQ(orders[0].second.cache_activations_at, std::vector<int>{1});
}

// DistServe section 3.1: more tokens than L_m take longer and give no more tokens per second.
TEST_F(PipelinesTest, PrefillBatchesPromptsUpToWhatSaturatesItsWorkers) {
  Plan plan{.num_layers = 4};
  plan.stages = {{.layers = {0, 4}, .role = StageRole::kPrefill},
                 {.layers = {0, 4}, .role = StageRole::kDecode}};
  Layout layout = MakeLayout(plan, {}).value();
  uint64_t worker = 0;
  for (LayoutStage& stage : layout.stages) Load(stage.ranks[0], ++worker, 0);
  Pipeline& pipeline = Opened(layout);
  const auto profiled = [&](int64_t tokens) {
    members_.Find("w1")->profile =
        std::make_shared<const cost::Profile>(cost::Profile{.saturation_tokens = tokens});
    pipelines_.FollowProfile(WorkerId(1));
  };
  const auto batched = [&] {
    FormSteps();
    const auto steps = Sent<PipelineStep>();
    if (steps.size() != 1) return size_t{0};
    EndStep(pipeline, steps[0].second);
    for (uint64_t id = 1; id < 20; ++id) {
      pipeline.scheduler->Abort(RequestId(id), std::nullopt, now_, outputs_);
    }
    return steps[0].second.plan->sequences.size();
  };
  for (uint64_t id : {1, 2}) Add(pipeline, id);
  EXPECT_EQ(batched(), 2u) << "nothing is known of the worker";
  profiled(3);
  for (uint64_t id : {3, 4}) Add(pipeline, id);
  EXPECT_EQ(batched(), 1u);
  profiled(4);
  for (uint64_t id : {5, 6}) Add(pipeline, id);
  EXPECT_EQ(batched(), 2u) << "three tokens do not saturate it";
}

TEST_F(PipelinesTest, StepsThatDecodeKeepTheTpotLimit) {
  PipelinesOptions options = Options();
  options.scheduler.max_num_seqs = 4;
  options.tpot_limit = Duration::Millis(10);
  Pipelines pipelines(options, members_, ids_, outbox_, memory_);
  const Layout layout = Loaded(1);
  const PlannedPipeline& planned = layout.pipelines.front();
  Pipeline& pipeline = *pipelines.FindOrOpen(layout, planned.route, planned.role, now_);
  pipelines.Opened(pipeline, WorkerId(1), now_);
  pipelines.Tested(pipeline);
  (void)Sent<PipelineStep>();
  const auto tokens_of_step = [&](Duration took) {
    pipelines.Touch(pipeline.id);
    (void)pipelines.FormSteps(now_, [](Pipeline&) {});
    const PipelineStep step = Sent<PipelineStep>().at(0).second;
    now_ = now_ + took;
    StepResult result{.id = step.plan->id};
    for (const SequenceStep& s : step.plan->sequences) {
      result.sequences.push_back({.id = s.id, .token = 9});
    }
    EXPECT_TRUE(pipelines.Commit(pipeline, result, now_, outputs_).ok());
    return step.plan->tokens.size();
  };
  Add(pipeline, 1, 16);
  EXPECT_EQ(tokens_of_step(Duration::Millis(100)), 16u) << "it delays nobody";
  Add(pipeline, 2, 16);
  EXPECT_EQ(tokens_of_step(Duration::Millis(200)), 17u) << "nothing is measured";
  Add(pipeline, 3, 16);
  EXPECT_EQ(tokens_of_step(Duration::Millis(10)), 6u) << "two decode, and a block of the prompt";
}

TEST_F(PipelinesTest, FormsStepsOfOpenPipelinesThatWereTouched) {
  const Layout layout = Loaded(1);
  Pipeline& pipeline = *For(layout);
  pipelines_.Touch(pipeline.id);
  FormSteps();
  EXPECT_TRUE(formed_.empty()) << "it is not open";
  pipelines_.Opened(pipeline, WorkerId(1), now_);
  pipelines_.Tested(pipeline);
  (void)Sent<PipelineStep>();
  Add(pipeline, 1);
  FormSteps();
  FormSteps();
  EXPECT_EQ(formed_, std::vector<PipelineId>{pipeline.id});
  auto steps = Sent<PipelineStep>();
  ASSERT_EQ(steps.size(), 1u);
  EndStep(pipeline, steps[0].second);
  EXPECT_EQ(outputs_.size(), 1u);
  FormSteps();
  EXPECT_EQ(Sent<PipelineStep>().size(), 1u) << "the end of a step touches it";
  pipelines_.TouchAll();
  FormSteps();
  EXPECT_EQ(formed_.size(), 3u);
  EXPECT_TRUE(Sent<PipelineStep>().empty()) << "its only step is in flight";
}

// While a layout changes, two groups of ranks share a worker.
TEST_F(PipelinesTest, PipelinesWhoseGroupsShareAWorkerTakeTurns) {
  Layout other = Loaded(1, 2, /*first_shard=*/10);
  other.stages[0].ranks[1].worker = WorkerId(3);
  Pipeline& a = Opened(Loaded(1, 2));
  a.retiring = true;
  Pipeline& b = Opened(other);
  ASSERT_NE(a.id, b.id);
  (void)Sent<OpenPipeline>();
  Add(a, 1);
  Add(b, 2);
  FormSteps();
  auto steps = Sent<PipelineStep>();
  ASSERT_EQ(steps.size(), 2u) << "one step, at two ranks";
  EXPECT_EQ(steps[0].second.pipeline, a.id);
  EndStep(a, steps[0].second);
  FormSteps();
  steps = Sent<PipelineStep>();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].second.pipeline, b.id) << "it has waited";
  a.scheduler->DetachAll(now_);
  b.scheduler->DetachAll(now_);
  pipelines_.Close(b.id, {});
  FormSteps();
  EXPECT_EQ(formed_.back(), a.id) << "its turn came with the end of the other";
}

TEST_F(PipelinesTest, ALostRouteIsOpenedAgainAfterABackOff) {
  const Layout layout = Loaded(1);
  const auto lose = [&] {
    Pipeline* pipeline = For(layout);
    ASSERT_NE(pipeline, nullptr);
    pipelines_.BackOff(*pipeline, Unavailable("lost"), now_);
    pipelines_.Close(pipeline->id, {});
  };
  for (const double wait : {0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0}) {
    lose();
    now_ = now_ + Duration::Seconds(wait * 0.99);
    EXPECT_EQ(For(layout), nullptr) << wait;
    now_ = now_ + Duration::Seconds(wait * 0.02);
  }
  Pipeline& pipeline = Opened(layout);
  Add(pipeline, 1);
  FormSteps();
  EndStep(pipeline, Sent<PipelineStep>().at(0).second);
  pipeline.scheduler->DetachAll(now_);
  lose();
  now_ = now_ + Duration::Seconds(0.051);
  EXPECT_NE(For(layout), nullptr) << "a step has ended since";
}

TEST_F(PipelinesTest, ThoseThatTheNextLayoutHasContinue) {
  Layout layout = Loaded(2);
  Pipeline& pipeline = *For(layout);
  pipelines_.RetireUnplanned(layout);
  EXPECT_FALSE(pipeline.retiring);
  layout.stages[1].closing = true;
  pipelines_.RetireClosing(layout);
  EXPECT_TRUE(pipeline.retiring);
  // The same stages with another shard are another pipeline.
  Layout again = Loaded(2);
  Pipeline& next = *For(again);
  ASSERT_NE(next.id, pipeline.id);
  again.stages[1].ranks[0].shard = ShardId(77);
  pipelines_.RetireUnplanned(again);
  EXPECT_TRUE(next.retiring);
}

TEST_F(PipelinesTest, AClosedOneLeavesItsCountersAndTheHopsThatAreKept) {
  const Layout layout = Loaded(2);
  Pipeline& pipeline = Opened(layout);
  Add(pipeline, 1);
  FormSteps();
  EXPECT_EQ(pipelines_.Using(WorkerId(2)), std::vector<PipelineId>{pipeline.id});
  EXPECT_EQ(pipelines_.Using(pipeline.hops[1].shards), std::vector<PipelineId>{pipeline.id});
  EXPECT_TRUE(pipelines_.Using(WorkerId(3)).empty());
  const uint64_t steps = pipelines_.Stats().steps;
  EXPECT_GT(steps, 0u);
  const PipelineId id = pipeline.id;
  const std::vector<PipelineHop> kept = {pipeline.hops[0]};
  memory_.Survive(id, kept);
  pipeline.scheduler->DetachAll(now_);
  pipelines_.Close(id, kept);
  const auto closed = Sent<ClosePipeline>();
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].first, ConnectionId(2));
  EXPECT_FALSE(pipelines_.contains(id));
  EXPECT_EQ(pipelines_.Find(id), nullptr);
  EXPECT_EQ(pipelines_.Stats().steps, steps);
}

TEST_F(PipelinesTest, EveryLineOfTheStepLogNamesItsPipeline) {
  std::vector<std::string> lines;
  PipelinesOptions options = Options();
  options.step_log = [&](std::string_view line) { lines.emplace_back(line); };
  Pipelines logged(std::move(options), members_, ids_, outbox_, memory_);
  const Layout layout = Loaded(1);
  const PlannedPipeline& planned = layout.pipelines.front();
  const Pipeline* pipeline = logged.FindOrOpen(layout, planned.route, planned.role, now_);
  ASSERT_FALSE(lines.empty());
  const std::string start = "{\"pipeline\":" + std::to_string(pipeline->id.value()) + ",";
  for (const std::string& line : lines) EXPECT_TRUE(line.starts_with(start)) << line;
}

}  // namespace
}  // namespace millrace::cluster
