#include "kv/block_pool.h"

#include <gtest/gtest.h>

namespace millrace::kv {
namespace {

BlockHandle Take(BlockPool& pool) { return pool.Allocate().value().block; }

TEST(BlockPool, GivesEveryBlockOnce) {
  BlockPool pool(3);
  std::vector<int> refs(3, 0);
  for (int i = 0; i < 3; ++i) ++refs[Take(pool).index];
  EXPECT_EQ(refs, (std::vector<int>{1, 1, 1}));
  EXPECT_FALSE(pool.Allocate().has_value());
  pool.CheckIntegrity(refs);
}

TEST(BlockPool, CachedBlocksAreTakenLastAndOldestFirst) {
  BlockPool pool(4);
  std::vector<BlockHandle> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(Take(pool));
  for (int i : {2, 0, 1}) pool.SetCached(blocks[i].index, true);
  for (int i : {2, 3, 0, 1}) pool.DropRef(blocks[i], std::nullopt);
  EXPECT_EQ(pool.count(BlockState::kCached), 3);
  const auto first = pool.Allocate();
  EXPECT_EQ(first->block.index, blocks[3].index) << "the one block without content";
  EXPECT_FALSE(first->evicted);
  pool.AddRef(blocks[0]);  // a hit: no longer the next to go
  for (int expected : {2, 1}) {
    const auto next = pool.Allocate();
    EXPECT_EQ(next->block.index, blocks[expected].index);
    EXPECT_TRUE(next->evicted);
  }
  EXPECT_FALSE(pool.Allocate().has_value());
}

TEST(BlockPool, AHandleOfAnEarlierUseIsNotCurrent) {
  BlockPool pool(1);
  const BlockHandle first = Take(pool);
  pool.DropRef(first, std::nullopt);
  EXPECT_TRUE(pool.IsCurrent(first));
  const BlockHandle second = Take(pool);
  EXPECT_EQ(first.index, second.index);
  EXPECT_FALSE(pool.IsCurrent(first));
  EXPECT_FALSE(pool.IsCurrent({.index = 5}));
}

// Trap 1: a block that is freed twice would end up in two tables.
TEST(BlockPoolDeathTest, FreeingTwiceOrLateStops) {
  BlockPool pool(1);
  const BlockHandle block = Take(pool);
  pool.DropRef(block, std::nullopt);
  EXPECT_DEATH(pool.DropRef(block, std::nullopt), "block 0 released twice");
  EXPECT_DEATH(pool.AddRef(block), "block 0 is free");
  Take(pool);
  EXPECT_DEATH(pool.DropRef(block, std::nullopt), "block 0 generation 1 is not current");
}

// Trap 2: a block that a step in flight still uses has no owner but is not reused.
TEST(BlockPool, PendingUntilTheStepEnds) {
  BlockPool pool(2);
  const BlockHandle shared = Take(pool);
  const BlockHandle own = Take(pool);
  pool.AddRef(shared);
  pool.DropRef(shared, StepId(5));
  pool.DropRef(own, StepId(7));
  EXPECT_EQ(pool.count(BlockState::kOwned), 1);
  EXPECT_EQ(pool.count(BlockState::kPendingFree), 1);
  EXPECT_EQ(pool.available(), 0);
  pool.DropRef(shared, std::nullopt);
  EXPECT_EQ(pool.count(BlockState::kPendingFree), 2) << "step 5 still uses it";
  pool.CompleteSteps(StepId(5));
  EXPECT_EQ(pool.count(BlockState::kFree), 1);
  pool.CompleteSteps(StepId(6));
  EXPECT_EQ(pool.count(BlockState::kPendingFree), 1);
  pool.CompleteSteps(StepId(7));
  EXPECT_EQ(pool.available(), 2);
  pool.CompleteSteps(StepId(1));  // a late call changes nothing
  pool.CheckIntegrity(std::vector<int>{0, 0});
}

// Traps 2 and 45: a transfer that never ends does not keep its blocks, and late calls are harmless.
TEST(BlockPool, PinsEndWithTheTransferOrItsLease) {
  BlockPool pool(3);
  std::vector<BlockHandle> blocks = {Take(pool), Take(pool), Take(pool)};
  pool.Pin(PinId(1), {blocks.begin(), 2}, Time{300});
  pool.Pin(PinId(2), {blocks.begin() + 1, 2}, Time{100});
  for (BlockHandle block : blocks) pool.DropRef(block, std::nullopt);
  EXPECT_EQ(pool.count(BlockState::kPinned), 3);
  EXPECT_EQ(pool.NextPinExpiry(), Time{100});
  pool.SweepPins(Time{99});
  EXPECT_EQ(pool.count(BlockState::kPinned), 3);
  pool.SweepPins(Time{100});
  EXPECT_EQ(pool.count(BlockState::kPinned), 2) << "block 1 is pinned by both";
  pool.Unpin(PinId(1));
  EXPECT_EQ(pool.available(), 3);
  pool.Unpin(PinId(1));
  pool.Unpin(PinId(9));
  EXPECT_EQ(pool.NextPinExpiry(), std::nullopt);
  pool.CheckIntegrity(std::vector<int>{0, 0, 0});
}

TEST(BlockPoolDeathTest, TheAuditFindsAWrongCount) {
  BlockPool pool(2);
  Take(pool);
  EXPECT_DEATH(pool.CheckIntegrity(std::vector<int>{0, 0}),
               "block 0 has 1 references, tables name it 0");
}

}  // namespace
}  // namespace millrace::kv
