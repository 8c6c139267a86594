// What a worker keeps of an earlier session.
#include <gtest/gtest.h>

#include "cluster/worker/testing_core.h"
#include "cluster/worker/worker_core.h"

namespace millrace::cluster {
namespace {

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
