// The buddy allocator against a naive model that knows only a map of blocks.
#include "sched/buddy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "base/rng.h"

namespace millrace::sched {
namespace {

using Chunk = BuddyAllocator::Chunk;

TEST(Buddy, LaysOutAnyNumberOfBlocksAsPowersOfTwo) {
  BuddyAllocator buddy(983);
  EXPECT_EQ(buddy.chunk_max(), 512);
  std::vector<Chunk> held;
  for (const int size : {512, 256, 128, 64, 16, 4, 2, 1}) {
    const auto chunk = buddy.Allocate(size);
    ASSERT_TRUE(chunk) << size;
    EXPECT_EQ(chunk->blocks, size);
    held.push_back(*chunk);
    buddy.CheckIntegrity(held);
  }
  EXPECT_EQ(buddy.free_blocks(), 0);
  EXPECT_FALSE(buddy.Allocate(1));
}

TEST(Buddy, RoundsUpSplitsAndMerges) {
  BuddyAllocator buddy(16);
  EXPECT_EQ(BuddyAllocator::ChunkFor(1), 1);
  EXPECT_EQ(BuddyAllocator::ChunkFor(5), 8);
  const auto five = buddy.Allocate(5);
  const auto one = buddy.Allocate(1);
  ASSERT_TRUE(five && one);
  EXPECT_EQ(five->blocks, 8);
  EXPECT_EQ(buddy.free_blocks(), 7);
  // Seven blocks are free, but no run of eight, nor two of four.
  EXPECT_EQ(buddy.Room(8), 0);
  EXPECT_EQ(buddy.Room(4), 1);
  EXPECT_EQ(buddy.Room(3), 1);
  EXPECT_EQ(buddy.Room(1), 7);
  EXPECT_FALSE(buddy.Allocate(8));
  buddy.Free(*one);
  EXPECT_EQ(buddy.Room(8), 1);
  buddy.Free(*five);
  EXPECT_EQ(buddy.Room(16), 1);
  buddy.CheckIntegrity({});
}

TEST(BuddyDeathTest, RefusesChunksThatItDidNotAllocate) {
  BuddyAllocator buddy(12);
  const Chunk chunk = *buddy.Allocate(4);
  buddy.Free(chunk);
  EXPECT_DEATH(buddy.Free(chunk), "freed twice");
  EXPECT_DEATH(buddy.Free({2, 4}), "no chunk is");
  EXPECT_DEATH(buddy.Free({8, 8}), "no chunk is");
  const Chunk lost = *buddy.Allocate(4);
  EXPECT_DEATH(buddy.CheckIntegrity({}), "in no chunk");
  const std::vector<Chunk> twice = {lost, lost};
  EXPECT_DEATH(buddy.CheckIntegrity(twice), "in two chunks");
}

// Any aligned run of free blocks of the size is acceptable: the allocator finds room exactly when
// the model does.
class Model {
 public:
  explicit Model(int blocks) : used_(blocks) {}
  int Room(int size) const {
    int room = 0;
    for (int first = 0; first + size <= std::ssize(used_); first += size)
      room += IsFree(first, size);
    return room;
  }
  bool IsFree(int first, int size) const {
    for (int b = first; b < first + size; ++b) {
      if (used_[b]) return false;
    }
    return true;
  }
  void Set(const Chunk& chunk, bool used) {
    for (int b = chunk.first; b < chunk.first + chunk.blocks; ++b) used_[b] = used;
  }

 private:
  std::vector<bool> used_;
};

TEST(Buddy, EqualsTheModelOverRandomHistories) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Rng rng(seed);
    const int blocks = seed == 1 ? 983 : static_cast<int>(rng.Between(1, 300));
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << blocks << " blocks");
    BuddyAllocator buddy(blocks);
    Model model(blocks);
    std::vector<Chunk> held;
    for (int turn = 0; turn < 400; ++turn) {
      if (!held.empty() && rng.Between(0, 99) < 45) {
        const auto i = static_cast<size_t>(rng.Between(0, std::ssize(held) - 1));
        buddy.Free(held[i]);
        model.Set(held[i], false);
        held[i] = held.back();
        held.pop_back();
      } else {
        const int size = static_cast<int>(rng.Between(1, std::max(1, blocks / 3)));
        const int rounded = static_cast<int>(std::bit_ceil(static_cast<unsigned>(size)));
        ASSERT_EQ(buddy.Room(size), model.Room(rounded));
        const auto chunk = buddy.Allocate(size);
        ASSERT_EQ(chunk.has_value(), model.Room(rounded) > 0);
        if (!chunk) continue;
        ASSERT_EQ(chunk->blocks, rounded);
        ASSERT_TRUE(model.IsFree(chunk->first, chunk->blocks)) << "overlap at " << chunk->first;
        model.Set(*chunk, true);
        held.push_back(*chunk);
      }
      buddy.CheckIntegrity(held);
    }
    for (const Chunk& chunk : held) buddy.Free(chunk);
    buddy.CheckIntegrity({});
    EXPECT_EQ(buddy.free_blocks(), blocks);
    EXPECT_EQ(buddy.Room(buddy.chunk_max()), 1);
  }
}

}  // namespace
}  // namespace millrace::sched
