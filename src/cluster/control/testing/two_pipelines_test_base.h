// TwoPipelinesTest: a test fixture with the controller's parts and no controller: workers 1 and 2,
// each with the whole model, and a pipeline on each. Nothing answers unless the test does. One
// thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/test_time.h"
#include "cluster/control/lifecycle/pipeline_closer.h"
#include "cluster/control/lifecycle/request_lifecycle.h"
#include "cluster/control/testing/sent.h"

namespace millrace::cluster {

class TwoPipelinesTest : public ::testing::Test {
 protected:
  TwoPipelinesTest() {
    for (uint64_t worker = 1; worker <= 2; ++worker) {
      Join join;
      join.name = "w" + std::to_string(worker);
      members_.Add(WorkerId(worker), ConnectionId(worker), std::move(join), now_);
      deployment_.WorkerJoined();
    }
    Plan plan{.num_layers = 4};
    plan.stages = {{.layers = {0, 4}}, {.layers = {0, 4}}};
    plan.edges = {
        {std::nullopt, 0, 1}, {0, std::nullopt, 1}, {std::nullopt, 1, 1}, {1, std::nullopt, 1}};
    deployment_.Begin(MakeLayout(std::move(plan), {}).value());
    (void)deployment_.Reconcile({}, now_);
    std::vector<ControllerAction> actions;
    outbox_.Take(actions);
    for (const auto& [worker, load] : testing::SentOf<LoadShard>(actions)) {
      ShardLoaded loaded{.shard = load.shard};
      loaded.kv_bytes_per_token_layer = 8;
      loaded.kv_bytes = 65536;
      (void)deployment_.ShardLoaded(WorkerId(worker.value()), loaded);
    }
  }
  ~TwoPipelinesTest() override {
    requests_.CheckIntegrity();
    transfers_.CheckIntegrity();
    pipelines_.CheckIntegrity();
  }

  // Opens the next pipeline of the plan.
  PipelineId Open() {
    const PlannedPipeline& planned = deployment_.layout().pipelines.at(opened_++);
    Pipeline* pipeline =
        pipelines_.FindOrOpen(deployment_.layout(), planned.route, planned.role, now_);
    EXPECT_TRUE(pipelines_.Opened(*pipeline, pipeline->workers[0][0], now_));
    (void)pipelines_.Tested(*pipeline);
    requests_.TryQueue();
    return pipeline->id;
  }
  Status Submit(uint64_t id, int prompt_tokens = 5, int max_tokens = 1) {
    sched::NewRequest request{.id = RequestId(id)};
    request.prompt = std::make_shared<const std::vector<TokenId>>(prompt_tokens, 5);
    SamplingParams params;
    params.max_tokens = max_tokens;
    request.params = std::make_shared<const SamplingParams>(params);
    return lifecycle_.Submit(std::move(request), now_, {});
  }
  // Computes the next step of the pipeline.
  void Step(PipelineId id) {
    Pipeline& pipeline = pipelines_.at(id);
    const StepPlan* plan = pipeline.scheduler->Schedule(now_, pipeline.pulls).plan;
    ASSERT_NE(plan, nullptr);
    StepResult result{.id = plan->id};
    for (const SequenceStep& s : plan->sequences) {
      result.sequences.push_back({.id = s.id, .token = 9});
    }
    EXPECT_TRUE(lifecycle_.EndStep(pipeline, result, now_).ok());
  }
  // Where the request is. nullopt: it waits.
  std::optional<PipelineId> PipelineOf(uint64_t id) { return requests_.at(RequestId(id)).pipeline; }
  bool Ended(uint64_t id) { return requests_.Find(RequestId(id)) == nullptr; }
  std::vector<RequestOutput> TakeOutputs() {
    std::vector<RequestOutput> outputs;
    lifecycle_.TakeOutputs(outputs);
    return outputs;
  }

  Time now_ = At(1);
  Membership members_{MembershipOptions{}};
  IdSource ids_{Term(1)};
  Outbox outbox_{members_};
  Deployment deployment_{{.model = "m", .num_layers = 4}, {}, members_, ids_, outbox_};
  KvMemory memory_{outbox_};
  Pipelines pipelines_{{.scheduler = {.block_size = 4, .max_model_len = 64}, .num_layers = 4},
                       members_,
                       ids_,
                       outbox_,
                       memory_};
  Requests requests_{{.max_model_len = 64,
                      .block_size = 4,
                      .waiting_max = 8,
                      .waiting_limit = Duration::Seconds(60),
                      .deaths_max = 2}};
  Transfers transfers_{{.num_layers = 4,
                        .block_size = 4,
                        .hold_limit = Duration::Seconds(30),
                        .waiting_limit = Duration::Seconds(60)},
                       members_,
                       deployment_,
                       pipelines_,
                       requests_,
                       memory_,
                       ids_,
                       outbox_};
  ControllerCounters counters_;
  RequestLifecycle lifecycle_{{.block_size = 4,
                               .waiting_limit = Duration::Seconds(60),
                               .overtake_limit = Duration::Seconds(2),
                               .hold_limit = Duration::Seconds(30)},
                              {},
                              members_,
                              deployment_,
                              pipelines_,
                              requests_,
                              transfers_,
                              memory_,
                              counters_};
  PipelineCloser closer_{Duration::Seconds(30),
                         members_,
                         deployment_,
                         pipelines_,
                         requests_,
                         transfers_,
                         memory_,
                         lifecycle_,
                         counters_};

 private:
  size_t opened_ = 0;
};

}  // namespace millrace::cluster
