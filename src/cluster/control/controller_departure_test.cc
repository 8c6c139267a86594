// Requests of a worker that has a deadline: they finish there, move with their KV, or run until the
// last moment (SpotServe section 4.1).
#include <gtest/gtest.h>

#include <algorithm>

#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

constexpr NoticeOrigin kTakenBack{NoticeSource::kAws, NoticeKind::kTerminate};

// Two replicas on w1 and w2, which have the same number of requests. A step takes half a
// second. w2 gets a notice.
class Departures : public ScriptedWorkers {
 protected:
  void StartWith(std::vector<int> max_tokens) {
    Start(Chains({{kAll, kBoth}, {kAll, kBoth}}));
    Join(1);
    Join(2);
    uint64_t id = 0;
    for (int most : max_tokens) {
      ++id;
      ASSERT_TRUE(Submit(id, 10, 1, 40).ok());  // on w1
      ++id;
      ASSERT_TRUE(Submit(id, 10, 1, most).ok());  // on w2
    }
    EndSteps(2);
    ASSERT_EQ(RequestsAt(2), std::ssize(max_tokens));
  }
  void EndSteps(int rounds = 1) {
    for (; rounds > 0; --rounds) {
      Pass(0.5);
      for (uint64_t worker : Busy()) EndStep(worker);
    }
  }
  void EndPulls() {
    while (!pulls_.empty()) EndPull(0);
  }
  void EndStepsAndPulls(int rounds) {
    for (; rounds > 0; --rounds) {
      EndSteps();
      EndPulls();
    }
  }
  // A request moves, and its copy takes so long.
  void CopyOne(uint64_t id, double seconds, uint64_t to = 1) {
    ASSERT_TRUE(c_->Migrate(RequestId(id), Name(to), now_).ok());
    EndStep(to);  // its next one asks for the copy
    ASSERT_EQ(pulls_.size(), 1u);
    Pass(seconds);
    EndPulls();
    EndStepsAndPulls(2);
    ASSERT_EQ(Describe().moving, 0);
  }
  void Notice(double in_s, NoticeOrigin origin = kTakenBack, uint64_t worker = 2) {
    c_->Receive(ConnectionId(worker), Leaving{Duration::Seconds(in_s), origin}, now_);
    Settle();
  }
  int64_t RequestsAt(uint64_t worker) const {
    int64_t requests = 0;
    for (const PipelineStatus& pipeline : Describe().pipelines) {
      if (std::ranges::count(pipeline.workers, Name(worker)) > 0) requests += pipeline.requests;
    }
    return requests;
  }
  ControllerCounters Counters() const { return Describe().counters; }
};

TEST_F(Departures, WhatCertainlyEndsInTimeFinishes) {
  StartWith({6, 40});
  Notice(30);
  EndStep(1);
  EXPECT_EQ(pulls_.size(), 1u) << "request 4 needs 20 s, so it moves; request 2 needs 2 s";
  EndPulls();
  EndStepsAndPulls(5);
  EXPECT_EQ(Tokens(2), 6u);
  EXPECT_EQ(Counters().drained_finished, 1u);
  EXPECT_EQ(Counters().drained_moved, 1u);
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{2}));
  EXPECT_EQ(Counters().replays, 0u);
}

TEST_F(Departures, AProcessThatIsStoppedIsNotKeptWaiting) {
  StartWith({6, 40});
  Notice(30, {NoticeSource::kKubernetes, NoticeKind::kTerminate});
  EndStep(1);
  EXPECT_EQ(pulls_.size(), 2u);
}

TEST_F(Departures, WithoutADeadlineAllMove) {
  StartWith({6, 40});
  ASSERT_TRUE(c_->DrainWorker("w2").ok());
  EndStep(1);
  EXPECT_EQ(pulls_.size(), 2u);
}

// A token of KV takes most of a second, so 20 of them cannot be copied in 10 s.
TEST_F(Departures, WhatCannotBeCopiedInTimeRunsUntilTheLastMoment) {
  StartWith({40, 40, 40});
  CopyOne(2, 12);
  Notice(10);
  const size_t before = Tokens(4);
  EndSteps(18);
  EXPECT_TRUE(pulls_.empty());
  EXPECT_EQ(Tokens(4), before + 18) << "it runs on";
  EXPECT_EQ(RequestsAt(2), 2);
  EXPECT_EQ(Counters().drained_replayed, 0u);
  EndSteps();
  EXPECT_EQ(RequestsAt(2), 0);
  EXPECT_EQ(RequestsAt(1), 6);
  EXPECT_EQ(Counters().drained_replayed, 2u);
  EXPECT_EQ(Counters().replays, 2u);
  EXPECT_EQ(asked_to_leave_, (std::set<uint64_t>{2})) << "it is gone by its deadline";
  EndSteps(30);
  for (uint64_t id = 1; id <= 6; ++id) EXPECT_EQ(Tokens(id), 40u) << id;
}

TEST_F(Departures, WhatFitsIsCopiedTheOldestFirst) {
  StartWith({40, 40, 40});
  CopyOne(2, 1.5);
  Notice(8);
  EndStep(1);
  EXPECT_EQ(pulls_.size(), 1u) << "there is time for one";
  Pass(3);
  EndPulls();
  EndStepsAndPulls(2);
  EXPECT_EQ(Counters().drained_moved, 1u);
  EXPECT_EQ(Describe().moving, 0);
  EXPECT_EQ(RequestsAt(2), 1);
  EndSteps(17);
  EXPECT_EQ(Counters().drained_replayed, 1u);
  EndSteps(30);
  for (uint64_t id = 1; id <= 6; ++id) EXPECT_EQ(Tokens(id), 40u) << id;
}

// w1 has the front half of the layers and leaves. w2 keeps the KV of the back half, so only the
// front is computed again.
TEST_F(Departures, WhatOtherWorkersHoldIsNotComputedAgain) {
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}, {kAll, kBoth}}));
  for (uint64_t worker : {1, 2, 3}) Join(worker);
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(Submit(id, 10, 1, 40).ok());
  EndSteps(2);
  ASSERT_EQ(RequestsAt(1), 2);
  CopyOne(1, 12, 3);
  Notice(10, kTakenBack, 1);
  EndSteps(19);
  EXPECT_EQ(Counters().drained_replayed, 1u);
  ASSERT_EQ(pulls_.size(), 1u);
  EXPECT_EQ(pulls_[0].first, 3u);
  EndPulls();
  EndSteps(30);
  EXPECT_EQ(Counters().computed_in_part, 1u);
  for (uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(Tokens(id), 40u) << id;
}

}  // namespace
}  // namespace millrace::cluster
