// What requests have left in pipelines that no longer run them.
#include "cluster/control/transfers/recoverable_kv.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/testing/test_time.h"

namespace millrace::cluster {
namespace {

constexpr PipelineId kRuns{1}, kLost{2};
constexpr RequestId kFirst{1}, kSecond{2};

class RecoverableKvStoreTest : public ::testing::Test {
 protected:
  RecoverableKvStoreTest() {
    Join join;
    join.name = "w3";
    members_.Add(WorkerId(3), ConnectionId(3), std::move(join), Time{});
  }
  ~RecoverableKvStoreTest() override {
    kv_.CheckIntegrity([](PipelineId id) { return id == kRuns; }, [](RequestId) { return true; });
  }
  static RecoverableKv In(PipelineId pipeline) {
    return {.pipeline = pipeline, .kv = {{8, {4, 5}}}};
  }
  static PipelineHop HopAt(uint64_t worker) {
    return {{0, 4}, {{.worker = WorkerId(worker)}}, {ShardId(worker)}};
  }
  // The pipelines that the worker was told to close.
  std::vector<PipelineId> Closed() {
    std::vector<ControllerAction> actions;
    outbox_.Take(actions);
    std::vector<PipelineId> closed;
    for (const ControllerAction& action : actions) {
      closed.push_back(std::get<ClosePipeline>(std::get<SendToWorker>(action).message).pipeline);
    }
    return closed;
  }

  Membership members_{MembershipOptions{}};
  Outbox outbox_{members_};
  RecoverableKvStore kv_{outbox_};
};

TEST_F(RecoverableKvStoreTest, ALostPipelineStaysOpenUntilTheLastRequestHasItsKv) {
  kv_.Leave(kFirst, In(kLost));
  kv_.Leave(kSecond, In(kLost));
  kv_.Survives(kLost, {HopAt(3)}, At(60));
  ASSERT_NE(kv_.SurvivingHops(kLost), nullptr);
  EXPECT_EQ(kv_.In(kLost), (std::vector<RequestId>{kFirst, kSecond}));
  kv_.Drop(kFirst);
  EXPECT_TRUE(Closed().empty());
  kv_.Drop(kSecond);
  EXPECT_EQ(Closed(), std::vector<PipelineId>{kLost});
  EXPECT_EQ(kv_.SurvivingHops(kLost), nullptr);
  EXPECT_EQ(kv_.Find(kSecond), nullptr);
}

TEST_F(RecoverableKvStoreTest, NothingIsKeptOfALostPipelineWithoutKv) {
  kv_.Survives(kLost, {HopAt(3)}, At(60));
  EXPECT_EQ(kv_.AnyLost(), std::nullopt);
}

TEST_F(RecoverableKvStoreTest, APipelineThatRunsIsNotClosed) {
  kv_.Leave(kFirst, In(kRuns));
  EXPECT_TRUE(kv_.Any(kRuns));
  kv_.Drop(kFirst);
  EXPECT_FALSE(kv_.Any(kRuns));
  EXPECT_TRUE(Closed().empty());
}

TEST_F(RecoverableKvStoreTest, LostPipelinesExpire) {
  const auto there = [](const PipelineHop&) { return true; };
  const auto gone = [](const PipelineHop&) { return false; };
  kv_.Leave(kFirst, In(kLost));
  kv_.Survives(kLost, {HopAt(3)}, At(60));
  EXPECT_TRUE(kv_.Expired(At(60), there).empty());
  EXPECT_EQ(kv_.Expired(At(1), gone), std::vector<PipelineId>{kLost}) << "its workers are lost";
  EXPECT_EQ(kv_.Expired(At(61), there), std::vector<PipelineId>{kLost});
  kv_.Extend(kLost, At(70));
  EXPECT_TRUE(kv_.Expired(At(61), there).empty());
  kv_.Extend(kLost, At(65));
  EXPECT_TRUE(kv_.Expired(At(70), there).empty()) << "never shorter";
}

TEST_F(RecoverableKvStoreTest, MovesAreCountedUntilTheyEnd) {
  kv_.Leave(kFirst, In(kRuns)).moves = true;
  kv_.Leave(kSecond, In(kRuns));
  EXPECT_EQ(kv_.moving(), 1);
  kv_.Find(kFirst)->moves = false;
  EXPECT_EQ(kv_.moving(), 0);
}

TEST_F(RecoverableKvStoreTest, KvIsInOnePipelineOnly) {
  kv_.Leave(kFirst, In(kRuns));
  EXPECT_EQ(kv_.Leave(kFirst, {.pipeline = kRuns, .kv = {{12, {}}, {9, {}}}}).tokens(), 12);
  EXPECT_DEATH(kv_.Leave(kFirst, In(kLost)), "two pipelines");
}

}  // namespace
}  // namespace millrace::cluster
