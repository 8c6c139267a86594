// What a worker keeps of an earlier session.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include "cluster/worker/testing_core.h"
#include "cluster/worker/worker_core.h"

namespace millrace::cluster {
namespace {

// The reason why the worker ends the session with a controller that greets it; "": it follows.
std::string Greets(WorkerCore& core, int term, std::optional<std::string> store, Time now) {
  core.SessionUp(now);
  core.FromController({Welcome{WorkerId(1),
                               Term(static_cast<uint64_t>(term)),
                               Duration::Seconds(0.25),
                               {},
                               std::move(store)}},
                      now);
  const auto ends = Take<EndSession>(core);
  if (ends.empty()) core.SessionDown(now);
  return ends.empty() ? "" : ends.front().reason;
}

TEST(WorkerCore, FollowsNoControllerThatWasReplaced) {
  WorkerCore core({});
  EXPECT_EQ(Greets(core, 8, "a", {}), "");
  EXPECT_EQ(Greets(core, 7, "a", {}), "the controller of term 7 was replaced by the one of term 8");
  EXPECT_NE(Greets(core, 7, std::nullopt, {}), "") << "an earlier version does not say its store";
  EXPECT_EQ(Greets(core, 9, "a", {}), "");
}

// The cluster's store was lost, so its terms begin again.
TEST(WorkerCore, TermsOfAnotherStoreAreNotCompared) {
  WorkerCore core({});
  EXPECT_EQ(Greets(core, 8, "a", {}), "");
  EXPECT_EQ(Greets(core, 1, "b", {}), "");
  EXPECT_EQ(Greets(core, 1, "", {}), "") << "without a store";
}

// The store was restored from a backup: its terms begin again, and its identity is the same.
TEST(WorkerCore, FollowsAnOlderTermThatLasts) {
  WorkerCore core({});
  const auto at = [](double s) { return Time{} + Duration::Seconds(s); };
  EXPECT_EQ(Greets(core, 8, "a", at(0)), "");
  EXPECT_NE(Greets(core, 3, "a", at(1)), "");
  EXPECT_EQ(Greets(core, 8, "a", at(9)), "") << "the newer controller is there";
  EXPECT_NE(Greets(core, 3, "a", at(12)), "");
  EXPECT_NE(Greets(core, 3, "a", at(21)), "");
  EXPECT_EQ(Greets(core, 3, "a", at(22)), "");
}

// Shards outlive a session, but their number does not grow with the number of sessions.
TEST(WorkerCore, DropsShardsOfEarlierSessions) {
  WorkerCore core({});
  uint64_t shard = 100;
  for (uint64_t session = 1; session <= 40; ++session) {
    Welcomed(core, session);
    const ShardId id(++shard);
    core.FromController(Load(id, {0, 2}), {});
    const auto starts = Take<StartLoad>(core);
    ASSERT_EQ(starts.size(), 1u);
    EXPECT_EQ(starts[0].same_as.has_value(), session > 1);
    core.LoadEnded({.shard = id}, kLimits);
    EXPECT_EQ(core.shards(), 1u);
    EXPECT_EQ(Take<DropShard>(core).size(), session > 1 ? 1u : 0u);
    core.SessionDown({});
    EXPECT_EQ(core.orphans(), 1u);
  }
  // Other layers: the memory must be free before they are loaded.
  Welcomed(core, 99);
  core.FromController(Load(ShardId(1000), {2, 4}), {});
  EXPECT_EQ(Take<DropShard>(core).size(), 1u);
  EXPECT_EQ(core.shards(), 1u);
}

// The load takes the layers that both have, so the old shard goes after it.
TEST(WorkerCore, KeepsAShardOfAnEarlierSessionThatALoadOverlaps) {
  WorkerCore core({});
  Welcomed(core, 1);
  core.FromController(Load(ShardId(1), {0, 4}), {});
  core.LoadEnded({.shard = ShardId(1)}, kLimits);
  core.SessionDown({});
  Welcomed(core, 2);
  core.FromController(Load(ShardId(2), {2, 6}), {});
  core.FromController(Load(ShardId(3), {0, 1}), {});
  EXPECT_EQ(Take<DropShard>(core).size(), 0u);
  core.LoadEnded({.shard = ShardId(2)}, kLimits);
  EXPECT_EQ(Take<DropShard>(core).size(), 0u) << "the other load has not ended";
  core.LoadEnded({.shard = ShardId(3)}, kLimits);
  EXPECT_EQ(Take<DropShard>(core).size(), 1u);
  EXPECT_EQ(core.shards(), 2u);
}

// If there is no memory for both, the old shard goes, and the load is tried once more.
TEST(WorkerCore, AShardOfAnEarlierSessionGivesWay) {
  WorkerCore core({});
  Welcomed(core, 1);
  core.FromController(Load(ShardId(1), {0, 4}), {});
  core.LoadEnded({.shard = ShardId(1)}, kLimits);
  core.SessionDown({});
  Welcomed(core, 2);
  core.FromController(Load(ShardId(2), {2, 6}), {});
  (void)Take<StartLoad>(core);
  core.LoadEnded({.shard = ShardId(2), .status = ResourceExhausted("too large")}, kLimits);
  EXPECT_EQ(core.orphans(), 0u);
  std::vector<WorkerAction> actions;
  core.TakeActions(actions);
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(std::get<DropShard>(actions[0]).shard, ShardId(1));
  EXPECT_EQ(std::get<StartLoad>(actions[1]).load.shard, ShardId(2));
  core.LoadEnded({.shard = ShardId(2), .status = ResourceExhausted("too large")}, kLimits);
  EXPECT_EQ(core.shards(), 0u);
  EXPECT_EQ(Take<StartLoad>(core).size(), 0u);
}

}  // namespace
}  // namespace millrace::cluster
