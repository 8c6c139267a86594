// BuddyAllocator: runs of adjacent blocks whose lengths are powers of two, split in halves and
// merged again. vLLM section 6.1 places the reservations of its Orca baselines this way, because
// their memory must be contiguous: rounding up and gaps lose blocks.
//
// Any number of blocks: they are laid out as the powers of two that they sum up to, largest first
// (983 = 512 + 256 + 128 + 64 + 16 + 4 + 2 + 1); these do not merge with one another. Pure
// accounting, O(log blocks), no heap allocation after construction. Owned and called by one thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace millrace::sched {

class BuddyAllocator {
 public:
  struct Chunk {
    int first = 0;
    int blocks = 0;  // a power of two
  };

  // REQUIRES: num_blocks >= 1.
  explicit BuddyAllocator(int num_blocks);

  // The size of the chunk that holds `blocks`. REQUIRES: 1 <= blocks <= 2^30.
  static int ChunkFor(int blocks);
  // The largest chunk when nothing is allocated.
  int chunk_max() const;
  int free_blocks() const { return free_blocks_; }

  // A chunk of ChunkFor(blocks), split off the smallest free one that is large enough; among
  // equals, the one freed last.
  std::optional<Chunk> Allocate(int blocks);
  // The number of chunks for `blocks` that could be allocated now.
  int Room(int blocks) const;
  // REQUIRES: a chunk returned by Allocate and not freed yet.
  void Free(Chunk chunk);

  // Checks that held and free chunks cover all blocks without overlap, and that no two free halves
  // are unmerged. Crashes with the reason otherwise.
  void CheckIntegrity(std::span<const Chunk> held) const;

 private:
  static constexpr int kOrders = 31;

  // A block that starts a free chunk is in the ring of its order; the rings' heads are stored after
  // the blocks.
  struct Node {
    int next = 0, previous = 0;
    uint8_t order = 0;  // while free
    bool free = false;
  };

  int HeadOf(int order) const { return num_blocks_ + order; }
  void Insert(int first, int order);
  void Remove(int first);

  const int num_blocks_;
  int free_blocks_ = 0;
  std::vector<Node> nodes_;
  std::array<int, kOrders> free_chunks_{};  // by order
};

}  // namespace millrace::sched
