// Workers whose process lives and computes nothing: they are told apart from their neighbours, and
// replaced.
#include <gtest/gtest.h>

#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

class Still : public ScriptedWorkers {
 protected:
  std::set<std::string> Members() const {
    std::set<std::string> names;
    for (const WorkerStatus& worker : Describe().workers) names.insert(worker.name);
    return names;
  }
  std::vector<std::string> Remembered() const {
    std::vector<std::string> names;
    for (const auto& [name, reason] : Describe().still) names.push_back(name);
    return names;
  }
  // Some steps that end after 10 ms each.
  void Warm(uint64_t worker) {
    ASSERT_TRUE(Submit(900, 4, 1, 10).ok());
    for (int i = 0; i < 10; ++i) {
      now_ = now_ + Duration::Millis(10);
      EndStep(worker);
    }
    EXPECT_TRUE(Busy().empty());
  }
};

TEST_F(Still, AThreadThatTakesNothingUpIsReplacedBySpare) {
  Start(Chains({{kAll, kBoth}}));
  Join(1);
  Join(2);
  ASSERT_TRUE(Submit(1).ok());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1}));
  beat_of_[1].queued_steps = 1;
  beat_of_[1].still_ms = 9'900;
  Pass(1);
  EXPECT_EQ(Members().size(), 2u);
  beat_of_[1].still_ms = 10'100;
  steps_.clear();
  Pass(0.5);
  EXPECT_EQ(Members(), (std::set<std::string>{"w2"}));
  EXPECT_EQ(Busy(), (std::set<uint64_t>{2})) << "its request continues on the spare";
  EXPECT_EQ(Remembered(), std::vector<std::string>{"w1"});
  EXPECT_EQ(Describe().counters.workers_still, 1u);
  beat_of_.clear();
  Join(1);
  EXPECT_TRUE(Remembered().empty()) << "it was restarted";
}

TEST_F(Still, AStepThatDoesNotComeBackEndsTheSessionOfItsHolder) {
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
  Join(1);
  Join(2);
  Warm(1);
  beat_of_[2].queued_steps = 1;  // its plan is there, the activations are not
  beat_of_[1].queued_steps = 1;
  ASSERT_TRUE(Submit(1).ok());
  Pass(10);
  EXPECT_EQ(Members().size(), 2u) << "no step is judged that soon";
  Pass(3);
  EXPECT_EQ(Members(), (std::set<std::string>{"w2"})) << "the first that holds it";
  EXPECT_NE(Describe().still.front().reason.find("a step has not come back for 1"),
            std::string::npos)
      << Describe().still.front().reason;
}

TEST_F(Still, TheSecondStageIsFoundToo) {
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
  Join(1);
  Join(2);
  Warm(1);
  beat_of_[2].queued_steps = 1;
  ASSERT_TRUE(Submit(1).ok());
  Pass(13);
  EXPECT_EQ(Members(), (std::set<std::string>{"w1"}));
}

TEST_F(Still, IfNobodyAdmitsToAStepTheLastStageOwesIt) {
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
  Join(1);
  Join(2);
  Warm(1);
  ASSERT_TRUE(Submit(1).ok());
  Pass(13);
  EXPECT_EQ(Members(), (std::set<std::string>{"w1"}));
}

TEST_F(Still, TheFirstStepsHaveAMinute) {
  Start(Chains({{kAll, kBoth}}));
  Join(1);
  ASSERT_TRUE(Submit(1).ok());
  beat_of_[1].queued_steps = 1;
  Pass(59);
  EXPECT_EQ(Members().size(), 1u);
  Pass(5);
  EXPECT_TRUE(Members().empty());
}

TEST_F(Still, SlowStepsAreNotJudged) {
  Start(Chains({{kAll, kBoth}}));
  Join(1);
  ASSERT_TRUE(Submit(1, 4, 1, 12).ok());
  for (int i = 0; i < 10; ++i) {
    beat_of_[1].batch_age_ms = 1;
    Pass(2);
    ++beat_of_[1].steps_done;
    EndStep(1);
  }
  beat_of_[1].batch_age_ms = 0;
  beat_of_[1].queued_steps = 1;
  Pass(38);
  EXPECT_EQ(Members().size(), 1u) << "20 times 2 s are not over";
  Pass(6);
  EXPECT_TRUE(Members().empty());
}

TEST_F(Still, AWorkerInABatchIsJudgedByItsBatch) {
  Start(Chains({{kAll, kBoth}}));
  Join(1);
  Warm(1);
  ASSERT_TRUE(Submit(1).ok());
  beat_of_[1].batch_age_ms = 1;
  Pass(40);
  EXPECT_EQ(Members().size(), 1u);
}

// After the controller was stopped, heartbeats and results wait together.
TEST_F(Still, AControllerThatWasStoppedHearsFirst) {
  Start(Chains({{kAll, kBoth}}));
  Join(1);
  Warm(1);
  ASSERT_TRUE(Submit(1).ok());
  beat_of_[1].queued_steps = 1;
  now_ = now_ + Duration::Seconds(2.9);
  for (int i = 0; i < 4; ++i) {
    Pass(0.25);
    now_ = now_ + Duration::Seconds(2.7);
  }
  EXPECT_EQ(Members().size(), 1u);
  EndStep(1);
  beat_of_[1].queued_steps = 0;
  Pass(1);
  EXPECT_EQ(Members().size(), 1u);
}

TEST_F(Still, APipelineThatDoesNotOpen) {
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
  Join(1);
  open_hangs_.insert(2);
  Join(2);
  Pass(119);
  EXPECT_EQ(Members().size(), 2u);
  Pass(2);
  EXPECT_EQ(Members(), (std::set<std::string>{"w1"}));
}

TEST_F(Still, TheRankThatDoesNotBegin) {
  ControllerOptions options = Options();
  options.plan = EvenPlan("m", kLayers, 1, 2);
  Start(std::move(options));
  Join(1);
  Join(2);
  ASSERT_TRUE(Submit(1).ok());
  beat_of_[1].batch_age_ms = 11'000;  // rank 0 waits in its collective
  beat_of_[1].waits_for_ranks = true;
  beat_of_[1].steps_done = 5;
  beat_of_[2].queued_steps = 1;
  beat_of_[2].still_ms = 10'500;
  Pass(0.5);
  EXPECT_EQ(Members(), (std::set<std::string>{"w1"}));
}

}  // namespace
}  // namespace millrace::cluster
