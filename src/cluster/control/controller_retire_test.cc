// Orderly ends: plans that cannot be loaded, and workers that drain or announce that they leave. In
// all cases the plan in force continues to serve, and running requests keep their KV.
#include <gtest/gtest.h>

#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

// A pipeline of two workers; another plan is applied, which one of them cannot load.
class GivenUp : public ScriptedWorkers {
 protected:
  GivenUp() {
    Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
    Join(1);
    Join(2);
    EXPECT_TRUE(Submit(1).ok());
    EXPECT_EQ(Busy(), (std::set<uint64_t>{1}));
  }
  Status Apply(const Stages& stages) {
    Status applied = c_->ApplyPlan(Chains(stages), {});
    Settle();
    return applied;
  }
  void ExpectThePlanInForceIsWhole(int64_t epoch) {
    const ClusterStatus status = Describe();
    EXPECT_EQ(status.epoch, epoch);
    EXPECT_FALSE(status.changing);
    EXPECT_EQ(status.missing, std::nullopt);
    EXPECT_EQ(status.degraded, std::nullopt);
    for (const WorkerStatus& worker : status.workers) EXPECT_EQ(worker.note, "");
    EXPECT_EQ(status.counters.workers_lost, 0u);
    EXPECT_EQ(status.counters.pipelines_lost, 0u);
    EXPECT_EQ(status.counters.replays, 0u);
  }
};

TEST_F(GivenUp, APlanThatAWorkerCannotLoadDoesNotDisturbThePlanInForce) {
  load_fails_[2] = ResourceExhausted("no memory for the weights");
  ASSERT_TRUE(Apply({{{0, 1}, kBoth}, {{1, 4}, kBoth}}).ok());
  ExpectThePlanInForceIsWhole(1);
  ASSERT_TRUE(Describe().given_up);
  EXPECT_EQ(Describe().given_up->epoch, 2);
  EXPECT_EQ(Describe().given_up->reason,
            "worker w2 cannot load layers 1-3: no memory for the weights");
  EXPECT_EQ(Describe().counters.plans_given_up, 1u);
  EndStep(1);
  EXPECT_EQ(Tokens(1), 1u) << "the running request continues";
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1}));
  ASSERT_TRUE(Submit(2).ok());
  EXPECT_EQ(Describe().waiting, 0);
  // It is not tried again automatically, and nothing of it remains for the next plan.
  const size_t loads = loads_.size();
  Pass(10);
  EXPECT_EQ(loads_.size(), loads);
  load_fails_.clear();
  ASSERT_TRUE(Apply({{{0, 3}, kBoth}, {{3, 4}, kBoth}}).ok());
  EXPECT_EQ(Describe().epoch, 3);
  EXPECT_EQ(Describe().given_up, std::nullopt);
  EXPECT_EQ(Describe().counters.plans_applied, 2u);
}

// For instance because no source has the weights: the worker's session continues.
TEST_F(GivenUp, AMissingSourceOfWeightsEndsNoSession) {
  load_fails_[1] = Unavailable("no worker has these weights");
  ASSERT_TRUE(Apply({{kAll, kBoth}}).ok());
  ExpectThePlanInForceIsWhole(1);
  EXPECT_TRUE(Describe().given_up);
}

TEST_F(GivenUp, APlanWhoseRanksNeverConnectIsGivenUp) {
  load_fails_[1] = load_fails_[2] = Unavailable("rank 1 of 2 did not come within 30 s");
  Plan plan = Chains({{kAll, kBoth}});
  plan.stages[0].tensor_parallel = 2;
  ASSERT_TRUE(c_->ApplyPlan(plan, {}).ok());
  Settle();
  ExpectThePlanInForceIsWhole(1);
  ASSERT_TRUE(Describe().given_up);
  EXPECT_EQ(
      Describe().given_up->reason,
      "the ranks of layers 0-3 failed to connect 3 times: rank 1 of 2 did not come within 30 s");
}

// A failed load for the plan in force is tried on another worker.
TEST_F(GivenUp, AWorkerThatCannotLoadForThePlanInForceIsReplaced) {
  Join(3);
  load_fails_[3] = ResourceExhausted("no memory for the weights");
  Lose(2);
  EXPECT_EQ(Describe().missing, "Layers 2-3 are not on any worker.");
  for (const WorkerStatus& worker : Describe().workers) {
    EXPECT_EQ(worker.note, worker.name == "w3" ? "no memory for the weights" : "");
  }
  Join(4);
  EXPECT_EQ(Describe().missing, std::nullopt);
}

// Layouts that follow the number of workers change like other plans.
class Elastic : public ScriptedWorkers {
 protected:
  void StartWith(int workers) {
    ControllerOptions options = Options();
    options.shape.stages = workers;
    Start(std::move(options));
    for (int worker = 1; worker <= workers; ++worker) Join(static_cast<uint64_t>(worker));
    Pass(3);
    ASSERT_EQ(Describe().plan.stages.size(), static_cast<size_t>(workers));
    ASSERT_FALSE(Describe().changing);
  }
};

TEST_F(Elastic, ALayoutThatDoesNotFitIsGivenUpUntilTheWorkersChange) {
  StartWith(2);
  load_fails_[1] = ResourceExhausted("no memory for the weights");
  Lose(2);
  Pass(3);
  EXPECT_TRUE(Describe().given_up) << "the whole model on one worker";
  EXPECT_EQ(Describe().plan.stages.size(), 2u);
  EXPECT_EQ(Describe().missing, "Layers 2-3 are not on any worker.");
  const size_t loads = loads_.size();
  Pass(30);
  EXPECT_EQ(loads_.size(), loads) << "it is not retried";
  Join(3);
  EXPECT_EQ(Describe().missing, std::nullopt) << "the first still has its half";
}

TEST_F(Elastic, AWorkerWithoutAReplacementStays) {
  StartWith(2);
  ASSERT_TRUE(Submit(1).ok());
  load_fails_[1] = ResourceExhausted("no memory for the weights");
  ASSERT_TRUE(c_->DrainWorker("w2").ok());
  Settle();
  EXPECT_TRUE(Describe().given_up);
  for (const WorkerStatus& worker : Describe().workers) EXPECT_FALSE(worker.draining);
  EXPECT_TRUE(asked_to_leave_.empty());
  EXPECT_EQ(Describe().missing, std::nullopt);
  EXPECT_EQ(Describe().counters.pipelines_lost, 0u);
  // A worker that announces that it leaves is let go.
  Leaves(2);
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{2}));
}

TEST_F(Elastic, AWithdrawnNoticeKeepsTheLayout) {
  StartWith(3);
  for (uint64_t worker : {1, 2}) load_hangs_.insert(worker);
  ASSERT_TRUE(Submit(1).ok());
  Leaves(3);
  ASSERT_TRUE(Describe().changing) << "to two workers";
  EXPECT_TRUE(Describe().workers[2].draining);
  Stays(3);
  EXPECT_FALSE(Describe().changing);
  EXPECT_FALSE(Describe().workers[2].draining);
  EXPECT_EQ(Describe().workers[2].notice, std::nullopt);
  EXPECT_EQ(Describe().plan.stages.size(), 3u);
  EXPECT_EQ(Describe().given_up->reason, "w3 stays");
  const size_t loads = loads_.size();
  Pass(10);
  EXPECT_EQ(loads_.size(), loads) << "nothing is left of the change";
  EXPECT_EQ(Describe().missing, std::nullopt);
  EXPECT_EQ(Busy().size(), 1u) << "the request runs on";
  EXPECT_EQ(Describe().counters.moves, 0u);
  // A change that is wanted for another reason happens.
  load_hangs_.clear();
  Lose(3);
  Pass(3);
  EXPECT_EQ(Describe().plan.stages.size(), 2u);
}

// Another worker still has to be replaced.
TEST_F(Elastic, TheNoticeOfAnotherStillCounts) {
  StartWith(4);
  for (uint64_t worker : {1, 2, 3, 4}) load_hangs_.insert(worker);
  Leaves(3);
  Leaves(4);
  Stays(3);
  EXPECT_TRUE(Describe().changing);
  EXPECT_FALSE(Describe().workers[2].draining);
  EXPECT_TRUE(Describe().workers[3].draining);
  load_hangs_.clear();
  Stays(4);
  EXPECT_FALSE(Describe().changing);
  EXPECT_EQ(Describe().plan.stages.size(), 4u);
}

TEST_F(Elastic, AnOperatorsDrainOutlivesANotice) {
  StartWith(3);
  load_hangs_ = {1, 2};
  Leaves(3);
  ASSERT_TRUE(c_->DrainWorker("w3").ok());
  Stays(3);
  EXPECT_TRUE(Describe().workers[2].draining);
  EXPECT_TRUE(Describe().changing);
}

// Even if its load takes longer than `replace_limit`.
TEST_F(Elastic, AnAppliedPlanIsNotReplacedByAnAutomaticOne) {
  StartWith(2);
  Join(3);
  Plan plan = Chains({{{0, 1}, kBoth}, {{1, 2}, kBoth}, {{2, 3}, kBoth}, {{3, 4}, kBoth}});
  ASSERT_TRUE(c_->ApplyPlan(plan, {}).ok());  // waits for a fourth worker
  Pass(10);
  EXPECT_TRUE(Describe().changing);
  Join(4);
  EXPECT_EQ(Describe().epoch, 2);
  EXPECT_EQ(Describe().plan.stages.size(), 4u);
  EXPECT_FALSE(Describe().changing);
}

// With a plan, and mostly without a spare worker.
class DrainedOntoTheOthers : public ScriptedWorkers {
 protected:
  int64_t RequestsAt(uint64_t worker) const {
    int64_t requests = 0;
    for (const PipelineStatus& pipeline : Describe().pipelines) {
      if (std::ranges::count(pipeline.workers, Name(worker)) > 0) requests += pipeline.requests;
    }
    return requests;
  }
};

TEST_F(DrainedOntoTheOthers, AReplicasRequestsMoveToTheOther) {
  Start(Chains({{kAll, kBoth}, {kAll, kBoth}}));
  Join(1);
  Join(2);
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(Submit(id).ok());
  for (int step = 0; step < 2; ++step) {
    EndStep(1);
    EndStep(2);
  }
  const int64_t moving = RequestsAt(2);
  ASSERT_EQ(moving, 2);
  Leaves(2);
  EndStep(1);
  EXPECT_EQ(Describe().missing, std::nullopt);
  EXPECT_EQ(Describe().degraded, "A stage with the model's layers is on a worker that is leaving.");
  ASSERT_EQ(std::ssize(pulls_), moving) << "the KV of each is copied while it continues";
  for (const auto& [worker, pull] : pulls_) EXPECT_EQ(worker, 1u);
  EXPECT_TRUE(asked_to_leave_.empty()) << "its KV is being copied";
  // New requests go only to the other replica.
  ASSERT_TRUE(Submit(5).ok());
  EXPECT_EQ(RequestsAt(1), 3);
  for (int i = 0; i < 8 && !asked_to_leave_.contains(2); ++i) {
    while (!pulls_.empty()) EndPull(0);
    for (uint64_t worker : Busy()) EndStep(worker);
  }
  EXPECT_EQ(RequestsAt(1), 5);
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{2}));
  EXPECT_EQ(Describe().counters.replays, 0u);
  EXPECT_EQ(Describe().counters.moves, static_cast<uint64_t>(moving));
  EXPECT_EQ(Describe().counters.moves_failed, 0u);
  Lose(2);
  EXPECT_EQ(Describe().counters.workers_left, 1u);
  EXPECT_EQ(Describe().counters.workers_lost, 0u) << "it left as planned";
  EXPECT_EQ(Describe().counters.pipelines_lost, 0u);
  EXPECT_EQ(Describe().degraded, "A stage with the model's layers has no worker.");
  Join(3);
  EXPECT_EQ(Describe().degraded, std::nullopt);
}

TEST_F(DrainedOntoTheOthers, AWithdrawnNoticeOpensItsStageAgain) {
  Start(Chains({{kAll, kBoth}, {kAll, kBoth}}));
  Join(1);
  Join(2);
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(Submit(id).ok());
  for (uint64_t worker : {1, 2}) EndStep(worker);
  Leaves(2);
  EndStep(1);
  ASSERT_FALSE(pulls_.empty());
  Stays(2);
  EXPECT_EQ(Describe().degraded, std::nullopt);
  for (const PipelineStatus& pipeline : Describe().pipelines) EXPECT_TRUE(pipeline.open);
  for (uint64_t id = 5; id <= 6; ++id) ASSERT_TRUE(Submit(id).ok());
  EXPECT_GT(RequestsAt(2), 0);
  for (int i = 0; i < 8; ++i) {
    while (!pulls_.empty()) EndPull(0);
    for (uint64_t worker : Busy()) EndStep(worker);
  }
  EXPECT_TRUE(asked_to_leave_.empty());
  EXPECT_EQ(Describe().counters.replays, 0u);
  for (const PipelineStatus& pipeline : Describe().pipelines) EXPECT_FALSE(pipeline.retiring);
}

// It counts, and changes nothing.
TEST_F(DrainedOntoTheOthers, ASoftNoticeIsShown) {
  Start(Chains({{kAll, kBoth}, {kAll, kBoth}}));
  Join(1);
  Join(2);
  const NoticeOrigin rebalance{NoticeSource::kAws, NoticeKind::kRebalance};
  const NoticeOrigin terminate{NoticeSource::kAws, NoticeKind::kTerminate};
  c_->Receive(ConnectionId(2), MayLeave{{}, rebalance}, now_);
  Settle();
  EXPECT_FALSE(Describe().workers[1].draining);
  EXPECT_EQ(Describe().workers[1].notice->origin, rebalance);
  EXPECT_EQ(Describe().degraded, std::nullopt);
  // The same with another time is the same notice.
  for (const int left : {120, 119}) {
    c_->Receive(ConnectionId(2), Leaving{Duration::Seconds(left), terminate}, now_);
    Settle();
  }
  EXPECT_TRUE(Describe().workers[1].draining);
  EXPECT_EQ(Describe().workers[1].notice_left, Duration::Seconds(119));
  Pass(100);
  EXPECT_EQ(Describe().workers[1].notice_left, Duration::Seconds(19));
  EXPECT_EQ(Describe().notices, (std::map<NoticeOrigin, uint64_t>{{rebalance, 1}, {terminate, 1}}));
}

TEST_F(DrainedOntoTheOthers, DecodingRequestsMoveToAnotherDecodePipeline) {
  Start(Chains({{kAll, kPrefill}, {kFront, kDecode}, {kBack, kDecode}, {kAll, kDecode}}));
  for (uint64_t worker = 1; worker <= 4; ++worker) Join(worker);
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(Submit(id).ok());
    EndStep(1);
    while (!pulls_.empty()) EndPull(0);
  }
  ASSERT_EQ(RequestsAt(2), 1);
  ASSERT_EQ(RequestsAt(4), 1);
  EXPECT_EQ(Describe().counters.moves, 2u);
  ASSERT_TRUE(c_->DrainWorker("w3").ok()) << "as an operator does";
  Settle();
  EXPECT_EQ(Describe().missing, std::nullopt);
  EXPECT_EQ(Describe().counters.moves, 3u);
  for (int i = 0; i < 8 && !asked_to_leave_.contains(3); ++i) {
    while (!pulls_.empty()) EndPull(0);
    for (uint64_t worker : Busy()) EndStep(worker);
  }
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{3})) << "the front half stays for the next worker";
  EXPECT_EQ(RequestsAt(4), 2);
  EXPECT_EQ(Describe().counters.moves_failed, 0u);
  EXPECT_EQ(Describe().counters.replays, 0u);
  Lose(3);
  Join(5);
  EXPECT_EQ(Describe().degraded, std::nullopt);
}

// A long prompt is computed in several steps. The part that is already computed is fetched.
TEST_F(DrainedOntoTheOthers, APromptContinuesAtAnotherPrefillWorker) {
  ControllerOptions options = Options();
  options.plan = Chains({{kAll, kPrefill}, {kAll, kPrefill}, {kAll, kDecode}});
  options.scheduler.max_num_batched_tokens = 8;
  Start(std::move(options));
  for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  ASSERT_TRUE(Submit(1, 20).ok());
  const uint64_t first = *Busy().begin(), other = 3 - first;
  EndStep(first);
  steps_.clear();
  Leaves(first);
  ASSERT_EQ(pulls_.size(), 1u);
  EXPECT_EQ(pulls_[0].first, other);
  EXPECT_EQ(pulls_[0].second.end_token, 8);
  EndPull(0);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{other}));
  EXPECT_EQ(steps_[0].second.plan->sequences.at(0).start, 8);
}

TEST_F(DrainedOntoTheOthers, AnIndispensableWorkerIsNotDrainedButMayLeave) {
  Start(Chains({{kAll, kPrefill}, {kAll, kDecode}}));
  Join(1);
  Join(2);
  EXPECT_EQ(c_->DrainWorker("w2").code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(Describe().workers[1].draining);
  EXPECT_EQ(Describe().missing, std::nullopt) << "a refusal changes nothing";
  ASSERT_TRUE(Submit(1).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1}));
  Leaves(2);
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{2}));
}

TEST_F(DrainedOntoTheOthers, ASpareWorkerReplacesIt) {
  Start(Chains({{kAll, kBoth}, {kAll, kBoth}}));
  for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  const int64_t before = Describe().epoch;
  Leaves(2);
  EXPECT_GT(Describe().epoch, before);
  EXPECT_EQ(Describe().degraded, std::nullopt);
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{2}));
}

TEST_F(DrainedOntoTheOthers, ItLeavesEvenIfTheSpareWorkerCannotLoad) {
  Start(Chains({{kAll, kBoth}, {kAll, kBoth}}));
  for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  load_fails_[3] = ResourceExhausted("no memory for the weights");
  Leaves(2);
  EXPECT_TRUE(Describe().given_up);
  EXPECT_EQ(Describe().missing, std::nullopt);
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{2})) << "the first replica serves alone";
}

TEST_F(DrainedOntoTheOthers, ItLeavesEvenIfTheSpareWorkerIsLost) {
  Start(Chains({{kAll, kBoth}, {kAll, kBoth}}));
  for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  load_hangs_.insert(3);
  Leaves(2);
  EXPECT_TRUE(asked_to_leave_.empty()) << "its replacement is loading";
  Lose(3);
  EXPECT_EQ(Describe().missing, std::nullopt);
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{2})) << "the first replica serves alone";
}

TEST_F(DrainedOntoTheOthers, AllRanksOfAStageLeave) {
  Plan plan = Chains({{kAll, kBoth}, {kAll, kBoth}});
  plan.stages[1].tensor_parallel = 2;
  Start(plan);
  for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  ASSERT_EQ(Describe().degraded, std::nullopt);
  ASSERT_TRUE(Submit(1).ok());
  ASSERT_TRUE(Submit(2).ok());
  ASSERT_TRUE(Busy().contains(2));
  Leaves(2);
  Leaves(3);
  EXPECT_TRUE(asked_to_leave_.empty()) << "a step is in flight";
  EndStep(2);
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{2, 3}));
  EXPECT_EQ(Describe().missing, std::nullopt);
}

// The lost partner takes the collective with it, and its successor must not wait for a rank that
// leaves.
TEST_F(DrainedOntoTheOthers, ARankLeavesWhosePartnerIsLost) {
  Plan plan = Chains({{kAll, kBoth}, {kAll, kBoth}});
  plan.stages[1].tensor_parallel = 2;
  Start(plan);
  for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  ASSERT_TRUE(Submit(1).ok());
  ASSERT_TRUE(Submit(2).ok());
  Leaves(2);
  Lose(3);
  Join(4);
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{2}));
  Lose(2);
  Join(5);
  EXPECT_EQ(Describe().degraded, std::nullopt) << "two new ranks";
}

TEST_F(DrainedOntoTheOthers, ALostPrefillWorkerKeepsNoDecodeWorker) {
  Start(Chains({{kAll, kPrefill}, {kAll, kDecode}, {kAll, kDecode}}));
  for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(Submit(id).ok());
    EndStep(1);
    while (!pulls_.empty()) EndPull(0);
  }
  Lose(1);
  ASSERT_EQ(RequestsAt(3), 1);
  const uint64_t moves = Describe().counters.moves;
  Leaves(3);
  EXPECT_EQ(Describe().counters.moves, moves + 1) << "to the other decode pipeline";
  for (int i = 0; i < 8 && asked_to_leave_.empty(); ++i) {
    while (!pulls_.empty()) EndPull(0);
    for (uint64_t worker : Busy()) EndStep(worker);
  }
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{3}));
  EXPECT_EQ(RequestsAt(2), 2);
  EXPECT_EQ(Describe().counters.replays, 0u);
}

// The next plan is not given up when the worker leaves.
TEST_F(DrainedOntoTheOthers, TheNextPlanIsAssignedWithoutIt) {
  Start(Chains({{kAll, kBoth}, {kAll, kBoth}}));
  for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
  Plan plan = Chains({{{0, 1}, kBoth}, {{1, 2}, kBoth}, {kBack, kBoth}});
  plan.stages[0].tensor_parallel = 2;
  ASSERT_TRUE(c_->ApplyPlan(plan, {}).ok());  // needs four workers
  Settle();
  EXPECT_TRUE(Describe().changing);
  Leaves(2);
  EXPECT_TRUE(Describe().changing);
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{2}));
  Lose(2);
  Join(4);
  Join(5);
  EXPECT_FALSE(Describe().changing);
  EXPECT_EQ(Describe().plan.stages.size(), 3u);
}

}  // namespace
}  // namespace millrace::cluster
