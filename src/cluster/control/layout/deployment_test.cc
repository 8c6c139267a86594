#include "cluster/control/layout/deployment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/test_time.h"
#include "cluster/control/testing/deployment_test_base.h"

namespace millrace::cluster {
namespace {

using LoadResult = Deployment::LoadResult;

TEST_F(DeploymentTest, EventsAreActedOnInReconcile) {
  Start(PlanOf({kFront, kBack}));
  EXPECT_FALSE(deployment_.due());
  Join(1);
  Join(2);
  EXPECT_TRUE(deployment_.due());
  Reconcile();
  EXPECT_EQ(Sent(), "w1 load 0-1; w2 load 2-3; ");
  EXPECT_FALSE(deployment_.due());
  Reconcile();
  EXPECT_EQ(Sent(), "") << "what is asked for is not asked for again";
  EXPECT_EQ(Loaded(1), LoadResult::kTaken);
  EXPECT_EQ(Loaded(2), LoadResult::kTaken);
  EXPECT_TRUE(Reconcile().stages);
  EXPECT_TRUE(deployment_.layout().Up());
}

TEST_F(DeploymentTest, AnswersThatNothingWaitsForAreStale) {
  Start(PlanOf({kAll}, 2));
  Join(1);
  Reconcile();
  EXPECT_EQ(deployment_.ShardLoaded(WorkerId(1), {}), LoadResult::kStale) << "one rank is missing";
  EXPECT_EQ(deployment_.ShardLoaded(WorkerId(1), {.shard = ShardId(99)}), LoadResult::kStale);
  EXPECT_FALSE(deployment_.layout().stages[0].ranks[0].loaded);
}

TEST_F(DeploymentTest, ALayoutIsReplacedAtOnceWhileNothingIsLoaded) {
  Start(PlanOf({kAll}));
  Begin(PlanOf({kFront, kBack}));
  EXPECT_FALSE(deployment_.changing());
  EXPECT_EQ(deployment_.layout().plan.epoch, 2);
  EXPECT_TRUE(Reconcile().switched);
}

TEST_F(DeploymentTest, TheNextLayoutIsLoadedBesideTheOneInForce) {
  Start(PlanOf({kAll}));
  Join(1);
  Reconcile();
  Loaded(1);
  const ShardId old = loads_.at(1).shard;
  Join(2);
  Reconcile();
  Sent();
  Begin(PlanOf({kFront, kBack}));
  Reconcile();
  EXPECT_EQ(Sent(), "w1 load 0-1; w2 load 2-3; ");
  in_use_ = {.shards = {old}, .running = {WorkerId(1)}, .keeping = {}};
  Loaded(2);
  EXPECT_FALSE(Reconcile().switched);
  EXPECT_EQ(deployment_.layout().plan.epoch, 1);
  Loaded(1);
  EXPECT_TRUE(Reconcile().switched);
  EXPECT_EQ(deployment_.layout().plan.epoch, 2);
  EXPECT_EQ(Sent(), "") << "a pipeline still needs the old weights";
  EXPECT_TRUE(deployment_.HasShard(old));
  in_use_ = {};
  deployment_.Check();
  Reconcile();
  EXPECT_EQ(Sent(), "w1 unload; ");
  EXPECT_FALSE(deployment_.HasShard(old));
}

TEST_F(DeploymentTest, ALayoutThatCannotBeLoadedIsGivenUp) {
  Start(PlanOf({kAll}));
  Join(1);
  Reconcile();
  Loaded(1);
  Join(2);
  Begin(PlanOf({kFront, kBack}));
  Reconcile();
  Sent();
  EXPECT_EQ(Loaded(2, ResourceExhausted("no memory")), LoadResult::kTaken);
  EXPECT_FALSE(deployment_.given_up());
  Reconcile();
  EXPECT_EQ(Sent(), "w1 unload; w2 unload; ") << "only what was loaded for it";
  ASSERT_TRUE(deployment_.given_up());
  EXPECT_EQ(deployment_.given_up()->epoch, 2);
  EXPECT_EQ(deployment_.given_up()->reason, "worker w2 cannot load layers 2-3: no memory");
  EXPECT_TRUE(deployment_.layout().Up());
  EXPECT_TRUE(members_.at(WorkerId(2)).Usable());
}

TEST_F(DeploymentTest, ACompletePipelineServesAtOnceWhereNothingElseDoes) {
  Start(PlanOf({kFront, kBack}));
  Join(1);
  Join(2);
  Reconcile();
  Loaded(1);
  Loaded(2);
  Begin(PlanOf({kAll, kAll}));
  Reconcile();
  Loaded(1);
  EXPECT_FALSE(Reconcile().switched) << "the plan in force serves";
  Lose(2);
  EXPECT_TRUE(Reconcile().switched);
  Join(3);
  Reconcile();
  Loaded(3);
  Reconcile();
  EXPECT_TRUE(deployment_.layout().Up()) << "the other pipeline follows";
}

TEST_F(DeploymentTest, AWorkerThatCannotLoadForTheLayoutInForceIsReplaced) {
  Start(PlanOf({kAll}));
  Join(1);
  Join(2);
  Reconcile();
  EXPECT_EQ(Sent(), "w1 load 0-3; ");
  EXPECT_EQ(Loaded(1, ResourceExhausted("no memory")), LoadResult::kTaken);
  EXPECT_EQ(members_.at(WorkerId(1)).unusable, "no memory");
  Reconcile();
  EXPECT_EQ(Sent(), "w2 load 0-3; ");
  EXPECT_EQ(Loaded(2, Unavailable("no source")), LoadResult::kWorkerLost) << "it may join again";
}

TEST_F(DeploymentTest, RanksThatFailToConnectTryAgainAFewTimes) {
  Start(PlanOf({kFront, kBack}));
  Join(1);
  Join(2);
  Reconcile();
  Begin(PlanOf({kAll}, 2));
  Reconcile();
  for (int attempt = 1; attempt <= DeploymentOptions::kMeetingsMax; ++attempt) {
    EXPECT_FALSE(deployment_.given_up());
    Sent();
    const uint64_t group = loads_.at(1).group;
    EXPECT_EQ(Loaded(1, Unavailable("a rank is late")), LoadResult::kTaken);
    const LoadResult other = Loaded(2, Unavailable("a rank is late"));
    Reconcile();
    if (attempt == DeploymentOptions::kMeetingsMax) break;
    EXPECT_EQ(other, LoadResult::kStale) << "one failure of each attempt counts";
    EXPECT_NE(loads_.at(1).group, group);
    EXPECT_EQ(loads_.at(1).group, loads_.at(2).group);
  }
  ASSERT_TRUE(deployment_.given_up());
  EXPECT_EQ(deployment_.given_up()->reason,
            "the ranks of layers 0-3 failed to connect 3 times: a rank is late");
}

// A rank that waits for the lost one can load nothing else. One that reads weights continues.
TEST_F(DeploymentTest, ARankWhosePartnerIsLostLoadsAgain) {
  for (const bool reads : {false, true}) {
    SCOPED_TRACE(reads);
    Start(PlanOf({kAll}, 2));
    Join(1);
    Join(2);
    Reconcile();
    Sent();
    if (reads) deployment_.ShardProgress({loads_.at(1).shard, 1, 100});
    Lose(2);
    Join(3);
    Reconcile();
    EXPECT_EQ(Sent(), reads ? "w1 load 0-3; w1 unload; w3 load 0-3; "
                            : "w1 unload; w1 load 0-3; w3 load 0-3; ");
    Lose(1);
    Lose(3);
    Reconcile();
    Sent();
  }
}

TEST_F(DeploymentTest, AFailedCollectiveIsFormedAgain) {
  Start(PlanOf({kAll}, 2));
  Join(1);
  Join(2);
  Reconcile();
  Loaded(1);
  Loaded(2);
  Reconcile();
  Sent();
  deployment_.ResetGroup(loads_.at(2).shard);
  EXPECT_FALSE(deployment_.layout().Up());
  EXPECT_TRUE(Reconcile().stages);
  EXPECT_EQ(Sent(), "w1 load 0-3; w1 unload; w2 load 0-3; w2 unload; ");
}

// Another worker has the place meanwhile, and serves until the named one has loaded its layers.
TEST_F(DeploymentTest, AWorkerThatThePlanNamesGetsItsPlace) {
  Plan plan = PlanOf({kFront, kBack});
  plan.stages[0].nodes = {0};
  plan.stages[1].nodes = {1};
  deployment_.Begin(MakeLayout(std::move(plan), {"w5", "w2"}).value());
  Join(1);
  Join(2);
  Reconcile();
  EXPECT_EQ(Sent(), "w1 load 0-1; w2 load 2-3; ");
  Loaded(1);
  Loaded(2);
  Reconcile();
  Join(5);
  Reconcile();
  EXPECT_EQ(Sent(), "w5 load 0-1; ") << "w2 has its layers";
  EXPECT_TRUE(deployment_.layout().Up());
  EXPECT_TRUE(deployment_.changing());
  Loaded(5);
  EXPECT_TRUE(Reconcile().switched);
  EXPECT_EQ(Sent(), "w1 unload; ");
  Lose(5);
  Reconcile();
  EXPECT_EQ(Sent(), "w1 load 0-1; ") << "it stands in again";
}

TEST_F(DeploymentTest, AnAutomaticLayoutFollowsTheNumberOfWorkers) {
  Start(PlanOf({kFront, kBack}), /*automatic=*/true);
  Join(1);
  Reconcile();
  Loaded(1);
  Reconcile();
  now_ = At(1.9);
  deployment_.Check();
  Reconcile();
  EXPECT_FALSE(deployment_.changing());
  now_ = At(2);
  deployment_.Check();
  Reconcile();
  EXPECT_TRUE(deployment_.changing()) << "two seconds after the first look";
  Loaded(1);
  EXPECT_TRUE(Reconcile().switched);
  EXPECT_EQ(deployment_.layout().stages.size(), 1u);
  // A drained worker is replaced at once.
  Join(2);
  Reconcile();
  Sent();
  ASSERT_TRUE(deployment_.Drain(WorkerId(1)).ok());
  Reconcile();
  EXPECT_EQ(Sent(), "w2 load 0-3; ");
}

// A worker that is only started again would return soon, but where layers are loaded quickly,
// others have them sooner.
TEST_F(DeploymentTest, ALayoutThatCannotServeWaitsNoLongerThanALoadTakes) {
  const auto after_loss = [this](double load_s, double wait_s) {
    Start(PlanOf({kFront, kBack}), /*automatic=*/true);
    const Time begin = now_;
    Join(1);
    Join(2);
    Reconcile();
    now_ = begin + Duration::Seconds(load_s);
    Loaded(1);
    Loaded(2);
    Reconcile();
    Lose(2);
    Reconcile();
    now_ = begin + Duration::Seconds(load_s + wait_s - 0.01);
    Reconcile();
    EXPECT_FALSE(deployment_.changing());
    now_ = begin + Duration::Seconds(load_s + wait_s);
    Reconcile();
    EXPECT_TRUE(deployment_.changing());
    Lose(1);
    Reconcile();
  };
  after_loss(0.1, 0.4);
  after_loss(1.5, 1.5);
  after_loss(60, 2);
}

// One pipeline for prompts and two for answers, of one worker each.
class Apart : public DeploymentTest {
 protected:
  static DeploymentOptions Options() {
    DeploymentOptions options = DeploymentTest::Options();
    options.shape = {.prefill = 1, .decode = 2};
    return options;
  }
  Apart() : DeploymentTest(Options()) {
    Start(PlanFor(Options().shape, "m", 4), /*automatic=*/true);
    for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
    Reconcile();
    for (uint64_t worker = 1; worker <= 3; ++worker) Loaded(worker);
    Reconcile();
    Sent();
  }
  void After(double seconds) {
    now_ = At(seconds);
    deployment_.Check();
    Reconcile();
  }
  std::string Roles() const {
    std::string roles;
    for (const LayoutStage& stage : deployment_.layout().stages) {
      roles += stage.plan.role == StageRole::kPrefill  ? 'p'
               : stage.plan.role == StageRole::kDecode ? 'd'
                                                       : 'b';
    }
    return roles;
  }
};

TEST_F(Apart, APipelineThatTheOthersCanDoWithoutLeavesItsPlaceEmpty) {
  Lose(3);
  Reconcile();
  After(1);
  After(4);
  EXPECT_FALSE(deployment_.changing());
  EXPECT_EQ(Sent(), "");
  EXPECT_EQ(Roles(), "pdd");
  Join(4);
  Reconcile();
  EXPECT_EQ(Sent(), "w4 load 0-3; ");
}

TEST_F(Apart, WorkersThatDecodeAreLaidOutAgainWhenNoneComputesPrompts) {
  Lose(1);
  Reconcile();
  After(1);
  After(4);
  EXPECT_EQ(Sent(), "") << "they hold all layers";
  EXPECT_EQ(Roles(), "pd");
  Lose(2);
  Reconcile();
  After(5);
  After(8);
  EXPECT_EQ(Roles(), "b") << "the last one does both";
  Join(4);
  Join(5);
  Reconcile();
  After(9);
  After(12);
  Loaded(4);
  Loaded(5);
  Reconcile();
  EXPECT_EQ(Roles(), "pdd");
}

TEST_F(DeploymentTest, OneGivenUpIsNotTriedAgainWithTheSameWorkers) {
  Start(PlanOf({kFront, kBack}), /*automatic=*/true);
  Join(1);
  Reconcile();
  Loaded(1);
  for (const double second : {2.0, 4.0, 6.0, 8.0}) {
    now_ = At(second);
    deployment_.Check();
    Reconcile();
    if (deployment_.changing()) Loaded(1, ResourceExhausted("no memory"));
  }
  EXPECT_EQ(deployment_.given_up_count(), 1u);
  EXPECT_EQ(deployment_.newest_epoch(), 2);
  Join(2);
  Reconcile();
  Sent();
  Lose(2);
  now_ = At(9);
  Reconcile();
  now_ = At(11);
  Reconcile();
  EXPECT_TRUE(deployment_.changing());
}

// Two replicas by plan.
class Draining : public DeploymentTest {
 protected:
  void StartWith(uint64_t workers) {
    Start(PlanOf({kAll, kAll}));
    for (uint64_t worker = 1; worker <= workers; ++worker) Join(worker);
    Reconcile();
    Loaded(1);
    Loaded(2);
    Reconcile();
    Sent();
  }
};

TEST_F(Draining, ASpareWorkerTakesItsPlace) {
  StartWith(3);
  ASSERT_TRUE(deployment_.Drain(WorkerId(2)).ok());
  Reconcile();
  EXPECT_EQ(Sent(), "w3 load 0-3; ") << "the other replica keeps its shard";
  EXPECT_TRUE(deployment_.layout().Up()) << "it serves meanwhile";
  Loaded(3);
  EXPECT_TRUE(Reconcile().switched);
  EXPECT_EQ(Sent(), "w2 unload; w2 leave: drained; ");
}

TEST_F(Draining, WithoutASpareWorkerItsStagesClose) {
  StartWith(2);
  ASSERT_TRUE(deployment_.Drain(WorkerId(2)).ok());
  EXPECT_TRUE(deployment_.layout().stages[1].closing);
  in_use_.running = {WorkerId(1), WorkerId(2)};
  EXPECT_TRUE(Reconcile().stages);
  EXPECT_EQ(Sent(), "");
  in_use_ = {.shards = {}, .running = {WorkerId(1)}, .keeping = {WorkerId(2)}};
  deployment_.Check();
  Reconcile();
  EXPECT_EQ(Sent(), "w2 unload; ") << "it keeps KV of a lost pipeline";
  in_use_.keeping.clear();
  for (int round = 0; round < 2; ++round) {
    deployment_.Check();
    Reconcile();
  }
  EXPECT_EQ(Sent(), "w2 leave: drained; ") << "it is told once";
  EXPECT_FALSE(deployment_.layout().stages[1].closing) << "another worker may take the slot";
}

TEST_F(Draining, AWorkerThatTheOthersCannotDoWithoutStays) {
  StartWith(2);
  ASSERT_TRUE(deployment_.Drain(WorkerId(2)).ok());
  Reconcile();
  const Status refused = deployment_.Drain(WorkerId(1));
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_FALSE(members_.at(WorkerId(1)).draining);
  EXPECT_FALSE(deployment_.layout().stages[0].closing);
}

// The replacement is lost while it loads. The other replica can serve alone.
TEST_F(Draining, ItDoesNotWaitForAReplacementThatIsLost) {
  StartWith(3);
  ASSERT_TRUE(deployment_.Drain(WorkerId(2)).ok());
  Reconcile();
  in_use_.running = {WorkerId(1), WorkerId(2)};
  Lose(3);
  Reconcile();
  EXPECT_TRUE(deployment_.layout().stages[1].closing);
  EXPECT_TRUE(deployment_.changing()) << "the next worker may complete it";
}

TEST_F(Draining, AGivenUpReplacementLetsItGo) {
  StartWith(3);
  members_.at(WorkerId(2)).notice.emplace();
  ASSERT_TRUE(deployment_.Drain(WorkerId(2)).ok());
  Reconcile();
  Loaded(3, ResourceExhausted("no memory"));
  Reconcile();
  EXPECT_TRUE(deployment_.given_up());
  EXPECT_TRUE(deployment_.layout().stages[0].Up());
  EXPECT_TRUE(members_.at(WorkerId(2)).draining);
}

}  // namespace
}  // namespace millrace::cluster
