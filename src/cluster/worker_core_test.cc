// The worker's state machine against peers and controllers that repeat themselves, leave gaps or
// come back.
#include "cluster/worker_core.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millrace::cluster {
namespace {

constexpr LaneId kLane{7};
constexpr ShardId kShard{3};

template <typename T>
std::vector<T> Take(WorkerCore& core) {
  std::vector<WorkerAction> actions;
  core.TakeActions(actions);
  std::vector<T> out;
  for (WorkerAction& action : actions) {
    if (auto* found = std::get_if<T>(&action)) out.push_back(std::move(*found));
  }
  return out;
}

LoadShard Load(ShardId shard, LayerRange layers) {
  return {.shard = shard, .layers = layers, .rank = {}, .ranks = {{}}, .max_batched_tokens = 64};
}

void Welcomed(WorkerCore& core, uint64_t worker) {
  core.SessionUp({});
  core.FromController(Welcome{WorkerId(worker), Term(1), Duration::Seconds(0.25)}, {});
}

// The last of two hops, its lane open.
void OpenSecondHop(WorkerCore& core) {
  Welcomed(core, 1);
  core.FromController(Load(kShard, {2, 4}), {});
  core.LoadEnded({.shard = kShard});
  WorkerAddress first, here;
  first.incarnation = Incarnation(10);
  const std::vector<LaneHop> hops = {{{0, 2}, {first}, {ShardId(2)}}, {{2, 4}, {here}, {kShard}}};
  core.FromController(OpenLane{.lane = kLane,
                               .hops = hops,
                               .hop = 1,
                               .block_size = 4,
                               .num_blocks = 8,
                               .max_batched_tokens = 64},
                      {});
  core.LaneStarted(kLane, OkStatus());
  (void)Take<SendUp>(core);
}

LaneStep Step(uint64_t id) {
  LaneStep step{kLane, {}};
  step.plan.id = StepId(id);
  if (id == 1) step.plan.started = {{SequenceId(1), nullptr, 0, nullptr}};
  step.plan.tokens = {5};
  step.plan.blocks = {0};
  step.plan.sequences = {{SequenceId(1), static_cast<int>(id) - 1, 1, 0, 0, 0, 1}};
  return step;
}

RowBytes SomeRows() { return std::make_shared<const std::vector<std::byte>>(8); }

TEST(WorkerCore, AStepThatComesTwiceRunsOnce) {
  WorkerCore core({});
  OpenSecondHop(core);
  core.FromPeer(Step(1), {});
  core.FromPeer(Step(1), {});
  core.RowsArrived(kLane, StepId(1), SomeRows());
  ASSERT_TRUE(core.NextBatch({}));
  core.BatchEnded(OkStatus(), std::vector<PartOutput>(1), {});
  // Long after it ran: still once, and its rows are not kept.
  core.FromPeer(Step(1), {});
  core.RowsArrived(kLane, StepId(1), SomeRows());
  EXPECT_FALSE(core.NextBatch({}));
  EXPECT_EQ(core.counters().stale_steps, 2u);
  EXPECT_EQ(core.counters().stale_rows, 1u);
  core.FromPeer(Step(2), {});
  core.RowsArrived(kLane, StepId(2), SomeRows());
  EXPECT_TRUE(core.NextBatch({}));
}

TEST(WorkerCore, AStepThatIsMissingBreaksTheLane) {
  WorkerCore core({});
  OpenSecondHop(core);
  core.FromPeer(Step(1), {});
  core.FromPeer(Step(3), {});
  const auto sent = Take<SendUp>(core);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(std::get<LaneBroken>(sent[0].message).lane, kLane);
}

TEST(WorkerCore, RefusesBlocksThatDoNotHoldTheTokens) {
  WorkerCore core({});
  OpenSecondHop(core);
  core.FromController(ExposeKv{{.lane = kLane}, {0, 1}, 9, Duration::Seconds(1.0)}, {});
  core.FromController(ExposeKv{{.lane = kLane}, {0, 8}, 8, Duration::Seconds(1.0)}, {});
  EXPECT_TRUE(Take<Expose>(core).empty());
  EXPECT_EQ(core.counters().refused, 2u);
  core.FromController(PullKv{TransferId(1), kLane, {0}, 0, 5, {}}, {});
  const auto sent = Take<SendUp>(core);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_FALSE(std::get<PullDone>(sent[0].message).status.ok());
  core.FromController(ExposeKv{{.lane = kLane}, {0, 1}, 8, Duration::Seconds(1.0)}, {});
  EXPECT_EQ(Take<Expose>(core).size(), 1u);
}

// Weights outlive a session, but their number does not grow with the sessions.
TEST(WorkerCore, GivesOldShardsBack) {
  WorkerCore core({});
  uint64_t shard = 100;
  for (uint64_t session = 1; session <= 40; ++session) {
    Welcomed(core, session);
    const ShardId id(++shard);
    core.FromController(Load(id, {0, 2}), {});
    const auto starts = Take<StartLoad>(core);
    ASSERT_EQ(starts.size(), 1u);
    EXPECT_EQ(starts[0].same_as.has_value(), session > 1);
    core.LoadEnded({.shard = id});
    EXPECT_EQ(core.shards(), 1u);
    EXPECT_EQ(Take<DropShard>(core).size(), session > 1 ? 1u : 0u);
    core.SessionDown({});
    EXPECT_EQ(core.orphans(), 1u);
  }
  // Other layers: the memory is needed before they are loaded.
  Welcomed(core, 99);
  core.FromController(Load(ShardId(1000), {2, 4}), {});
  EXPECT_EQ(Take<DropShard>(core).size(), 1u);
  EXPECT_EQ(core.shards(), 1u);
}

}  // namespace
}  // namespace millrace::cluster
