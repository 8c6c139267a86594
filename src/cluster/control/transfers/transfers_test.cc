// KV that changes pipelines, with real schedulers and no controller: what is pulled, what a loss
// costs, and how long the source keeps its KV.
#include "cluster/control/transfers/transfers.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/testing/test_time.h"
#include "cluster/control/testing/sent.h"

namespace millrace::cluster {
namespace {

// Workers 1 and 2 compute prompts, two layers each. Workers 3 and 4 decode, each on its own. A
// request's prompt is computed and it is handed over to worker 3.
class TransfersTest : public ::testing::Test {
 protected:
  static constexpr RequestId kRequest{7};
  static constexpr int kPrompt = 10;

  TransfersTest() {
    for (uint64_t worker = 1; worker <= 4; ++worker) {
      Join join;
      join.name = "w" + std::to_string(worker);
      members_.Add(WorkerId(worker), ConnectionId(worker), std::move(join), now_);
      deployment_.WorkerJoined();
    }
    Plan plan{.num_layers = 4};
    plan.stages = {{.layers = {0, 2}, .role = StageRole::kPrefill},
                   {.layers = {2, 4}, .role = StageRole::kPrefill},
                   {.layers = {0, 4}, .role = StageRole::kDecode},
                   {.layers = {0, 4}, .role = StageRole::kDecode}};
    plan.edges = {{std::nullopt, 0, 1}, {0, 1, 1},
                  {1, std::nullopt, 1}, {std::nullopt, 2, 1},
                  {2, std::nullopt, 1}, {std::nullopt, 3, 1},
                  {3, std::nullopt, 1}};
    deployment_.Begin(MakeLayout(std::move(plan), {}).value());
    (void)deployment_.Reconcile({}, now_);
    for (const auto& [worker, load] : Sent<LoadShard>()) {
      ShardLoaded loaded{.shard = load.shard};
      loaded.kv_bytes_per_token_layer = 8;
      loaded.kv_bytes = 65536;
      (void)deployment_.ShardLoaded(WorkerId(worker.value()), loaded);
    }
    for (const PlannedPipeline& planned : deployment_.layout().pipelines) {
      Pipeline* pipeline =
          pipelines_.FindOrOpen(deployment_.layout(), planned.route, planned.role, now_);
      for (const auto& hop : pipeline->workers) {
        (void)pipelines_.Opened(*pipeline, hop.front(), Time());
      }
      (void)pipelines_.Tested(*pipeline);
      (planned.role == StageRole::kPrefill ? prefill_ : decode_ ? other_ : decode_) = pipeline;
    }
    HandOver();
  }
  ~TransfersTest() override { transfers_.CheckIntegrity(); }

  void HandOver() {
    sched::NewRequest request{.id = kRequest};
    request.prompt = std::make_shared<const std::vector<TokenId>>(kPrompt, 5);
    request.params = std::make_shared<const SamplingParams>();
    ASSERT_TRUE(requests_.Add(request, now_).ok());
    sched::NewRequest prompt = request;
    prompt.stop_after_prompt = true;
    prompt.hold_kv = Duration::Seconds(30);
    ASSERT_TRUE(prefill_->scheduler->Add(std::move(prompt), now_).ok());
    EndStep(*prefill_);
    request.resumed.resize(1);
    request.resumed.front().output = {9};
    transfers_.HandOver(*prefill_, request);
    requests_.Wait(kRequest, std::move(request), now_);
    Place(*decode_);
  }
  // Adds the request to the pipeline, which fetches what it can.
  void Place(Pipeline& pipeline) {
    sched::NewRequest request = *requests_.at(kRequest).waiting;
    request.imported_tokens = transfers_.ToFetch(kRequest, pipeline);
    EXPECT_EQ(request.imported_tokens, std::vector<int>{kPrompt});
    ASSERT_TRUE(pipeline.scheduler->Add(std::move(request), now_).ok());
    pipeline.requests.Add(kRequest, 0);
    requests_.Enter(kRequest, pipeline.id);
    FormSteps(pipeline);
  }
  void FormSteps(Pipeline& pipeline) {
    pipelines_.Touch(pipeline.id);
    (void)pipelines_.FormSteps(now_,
                               [&](Pipeline& formed) { transfers_.StartPulls(formed, now_); });
    TakePulls();
  }
  void EndStep(Pipeline& pipeline) {
    const StepPlan* plan = pipeline.scheduler->Schedule(now_, pipeline.pulls).plan;
    ASSERT_NE(plan, nullptr);
    EndStep(pipeline, *plan);
  }
  void EndStep(Pipeline& pipeline, const StepPlan& plan) {
    StepResult result{.id = plan.id};
    for (const SequenceStep& s : plan.sequences) {
      result.sequences.push_back({.id = s.id, .token = 9});
    }
    std::vector<RequestOutput> outputs;
    EXPECT_TRUE(pipelines_.Commit(pipeline, result, now_, outputs).ok());
  }
  void EndPull(size_t index, bool well) {
    PullDone done{.transfer = orders_.at(index).transfer};
    if (!well) done.status = Unavailable("gone");
    done.activations = well && orders_[index].activations != PulledActivations::kNone;
    ASSERT_TRUE(transfers_.PullerOf(done.transfer));
    transfers_.Done(done, now_);
    TakePulls();
  }
  void TakePulls() {
    std::vector<ControllerAction> actions;
    outbox_.Take(actions);
    for (ControllerAction& action : actions) {
      ToWorker& message = std::get<SendToWorker>(action).message;
      if (auto* pull = std::get_if<PullKv>(&message)) orders_.push_back(std::move(*pull));
      if (auto* step = std::get_if<PipelineStep>(&message)) formed_ = std::move(*step);
    }
  }
  template <typename T>
  std::vector<std::pair<ConnectionId, T>> Sent() {
    std::vector<ControllerAction> actions;
    outbox_.Take(actions);
    return testing::SentOf<T>(actions);
  }
  // As the controller does when it loses a pipeline.
  void Lose(Pipeline& pipeline) {
    const PipelineId id = pipeline.id;
    transfers_.Retain(pipeline, nullptr, {}, now_);
    for (sched::DetachedRequest& left : pipeline.scheduler->DetachAll(now_)) {
      transfers_.TargetLost(left.request.id);
      requests_.Wait(left.request.id, std::move(left.request), now_);
    }
    pipeline.requests.Remove(kRequest);
    pipelines_.Close(id, transfers_.SurvivingHops(id));
    transfers_.Closed(id, now_);
  }
  SequenceStep NextOf(Pipeline& pipeline) {
    return pipeline.scheduler->Schedule(now_, pipeline.pulls).plan->sequences.at(0);
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
  Pipeline *prefill_ = nullptr, *decode_ = nullptr, *other_ = nullptr;
  std::vector<PullKv> orders_;
  PipelineStep formed_;  // the last one
};

TEST_F(TransfersTest, AHandOverPullsTheKvOnceAndFreesTheSource) {
  ASSERT_EQ(orders_.size(), 1u);
  EXPECT_EQ(orders_[0].sources.size(), 2u);
  EXPECT_EQ(orders_[0].end_token, kPrompt);
  EXPECT_TRUE(transfers_.Moves(kRequest));
  EXPECT_TRUE(transfers_.HasKvIn(prefill_->id));
  (void)transfers_.TakeDropped();
  EndPull(0, true);
  EXPECT_FALSE(transfers_.Moves(kRequest));
  EXPECT_FALSE(transfers_.HasKvIn(prefill_->id));
  EXPECT_TRUE(transfers_.TakeDropped());
  EXPECT_TRUE(prefill_->scheduler->HeldBlocks(kRequest).empty());
  EXPECT_EQ(NextOf(*decode_).start, kPrompt);
  EXPECT_EQ(transfers_.counters().moves, 1u);
  EXPECT_EQ(transfers_.counters().moves_failed, 0u);
  EXPECT_FALSE(transfers_.PullerOf(orders_[0].transfer)) << "a second answer is stale";
}

TEST_F(TransfersTest, OnlyTheLayersOfALostHopAreComputedAgain) {
  EndPull(0, false);
  ASSERT_EQ(orders_.size(), 3u) << "from each hop separately";
  EndPull(1, true);
  EndPull(2, false);
  EXPECT_EQ(NextOf(*decode_).only_layers, (LayerRange{2, 4}));
  EXPECT_EQ(transfers_.counters().moves_failed, 1u);
  EXPECT_EQ(transfers_.recomputed(), 1u);
  EXPECT_EQ(transfers_.counters().computed_in_part, 1u);
}

TEST_F(TransfersTest, WithoutAnyKvTheTokensAreComputedAgain) {
  EndPull(0, false);
  EndPull(1, false);
  EndPull(2, false);
  EXPECT_EQ(NextOf(*decode_).start, 0);
  EXPECT_EQ(transfers_.counters().fetched, 0u);
}

TEST_F(TransfersTest, IfTheTargetIsLostTheNextOneFetchesFromTheSource) {
  Lose(*decode_);
  EXPECT_EQ(transfers_.counters().moves_failed, 1u);
  Place(*other_);
  ASSERT_EQ(orders_.size(), 2u);
  EXPECT_EQ(orders_[1].pipeline, other_->id);
  EndPull(1, true);
  EXPECT_EQ(NextOf(*other_).start, kPrompt);
  EXPECT_EQ(transfers_.counters().fetched, 1u);
}

TEST_F(TransfersTest, IfTheSourceIsLostItsSurvivingHopsStayOpen) {
  const PipelineId lost = prefill_->id;
  Lose(*prefill_);
  EXPECT_TRUE(Sent<ClosePipeline>().empty());
  EndPull(0, true);
  EXPECT_EQ(NextOf(*decode_).start, kPrompt);
  const auto closed = Sent<ClosePipeline>();
  EXPECT_TRUE(closed.empty()) << "taken with the pulls";
  EXPECT_TRUE(transfers_.SurvivingHops(lost).empty());
}

TEST_F(TransfersTest, ALeaseIsRenewedWhileThePullerIsAlive) {
  transfers_.Tick(now_);
  now_ = now_ + Duration::Seconds(10);
  transfers_.Tick(now_);
  EXPECT_TRUE(Sent<ExportKv>().empty()) << "the puller is silent";
  ASSERT_TRUE(members_.Beat(ConnectionId(3), {.sequence = 1}, now_));
  transfers_.Tick(now_);
  EXPECT_EQ(Sent<ExportKv>().size(), 2u);
  EXPECT_EQ(transfers_.counters().leases_renewed, 1u);
  transfers_.Drop(kRequest);
  EXPECT_EQ(Sent<ReleaseKv>().size(), 2u);
  now_ = now_ + Duration::Seconds(10);
  ASSERT_TRUE(members_.Beat(ConnectionId(3), {.sequence = 2}, now_));
  transfers_.Tick(now_);
  EXPECT_TRUE(Sent<ExportKv>().empty());
}

TEST_F(TransfersTest, AMigrationEndsWithTheRequestAtItsTarget) {
  EndPull(0, true);
  EndStep(*decode_);
  ASSERT_TRUE(transfers_.Migrate(kRequest, *decode_, *other_, now_).ok());
  EXPECT_TRUE(transfers_.Migrates(kRequest));
  FormSteps(*other_);
  ASSERT_EQ(orders_.size(), 2u);
  EXPECT_TRUE(orders_[1].background);
  EndPull(1, true);
  ASSERT_EQ(formed_.pipeline, decode_->id);
  EXPECT_TRUE(transfers_.ContinuePauses(now_).empty());
  EXPECT_TRUE(transfers_.Migrates(kRequest)) << "a step in flight still computes it";
  EndStep(*decode_, *formed_.plan);
  EXPECT_TRUE(transfers_.ContinuePauses(now_).empty());
  EXPECT_EQ(requests_.at(kRequest).pipeline, other_->id);
  EXPECT_EQ(decode_->requests.size(), 0u);
  FormSteps(*other_);
  ASSERT_EQ(orders_.size(), 3u) << "the rest";
  EndPull(2, true);
  EXPECT_EQ(NextOf(*other_).start, kPrompt + 2);
  EXPECT_FALSE(transfers_.HasKvIn(decode_->id));
}

}  // namespace
}  // namespace millrace::cluster
