#include "sched/buddy.h"

#include <bit>

#include "base/check.h"

namespace millrace::sched {
namespace {

int OrderOf(int chunk_blocks) { return std::countr_zero(static_cast<unsigned>(chunk_blocks)); }

}  // namespace

BuddyAllocator::BuddyAllocator(int num_blocks) : num_blocks_(num_blocks) {
  MR_CHECK(num_blocks >= 1) << num_blocks;
  nodes_.resize(num_blocks + kOrders);
  for (int order = 0; order < kOrders; ++order) {
    const int head = HeadOf(order);
    nodes_[head].next = nodes_[head].previous = head;
  }
  for (int first = 0; first < num_blocks;) {
    const int chunk = static_cast<int>(std::bit_floor(static_cast<unsigned>(num_blocks - first)));
    Insert(first, OrderOf(chunk));
    first += chunk;
  }
}

int BuddyAllocator::ChunkFor(int blocks) {
  MR_CHECK(blocks >= 1 && blocks <= 1 << (kOrders - 1)) << blocks;
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(blocks)));
}

int BuddyAllocator::chunk_max() const {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(num_blocks_)));
}

std::optional<BuddyAllocator::Chunk> BuddyAllocator::Allocate(int blocks) {
  const int wanted = OrderOf(ChunkFor(blocks));
  int order = wanted;
  while (order < kOrders && free_chunks_[order] == 0) ++order;
  if (order == kOrders) return std::nullopt;
  const int first = nodes_[HeadOf(order)].next;
  Remove(first);
  // Keep splitting the lower half; the upper halves stay free.
  for (int half = order - 1; half >= wanted; --half) Insert(first + (1 << half), half);
  return Chunk{first, 1 << wanted};
}

int BuddyAllocator::Room(int blocks) const {
  const int wanted = OrderOf(ChunkFor(blocks));
  int room = 0;
  for (int order = wanted; order < kOrders; ++order) {
    room += free_chunks_[order] << (order - wanted);
  }
  return room;
}

void BuddyAllocator::Free(Chunk chunk) {
  MR_CHECK(std::has_single_bit(static_cast<unsigned>(chunk.blocks)) && chunk.first >= 0 &&
           chunk.first % chunk.blocks == 0 && chunk.first + chunk.blocks <= num_blocks_)
      << "no chunk is [" << chunk.first << ", +" << chunk.blocks << ")";
  MR_CHECK(!nodes_[chunk.first].free) << "the chunk at " << chunk.first << " was freed twice";
  int first = chunk.first;
  int order = OrderOf(chunk.blocks);
  // A half that would extend beyond the blocks is never free as a whole.
  for (; order + 1 < kOrders; ++order) {
    const int buddy = first ^ (1 << order);
    if (buddy >= num_blocks_ || !nodes_[buddy].free || nodes_[buddy].order != order) break;
    Remove(buddy);
    first &= ~(1 << order);
  }
  Insert(first, order);
}

void BuddyAllocator::Insert(int first, int order) {
  Node& node = nodes_[first];
  Node& head = nodes_[HeadOf(order)];
  node = {.next = head.next,
          .previous = HeadOf(order),
          .order = static_cast<uint8_t>(order),
          .free = true};
  nodes_[node.next].previous = first;
  head.next = first;
  ++free_chunks_[order];
  free_blocks_ += 1 << order;
}

void BuddyAllocator::Remove(int first) {
  Node& node = nodes_[first];
  nodes_[node.previous].next = node.next;
  nodes_[node.next].previous = node.previous;
  node.free = false;
  --free_chunks_[node.order];
  free_blocks_ -= 1 << node.order;
}

void BuddyAllocator::CheckIntegrity(std::span<const Chunk> held) const {
  std::vector<bool> seen(num_blocks_);
  const auto take = [&](int first, int blocks, const char* what) {
    for (int b = first; b < first + blocks; ++b) {
      MR_CHECK(b >= 0 && b < num_blocks_ && !seen[b])
          << "block " << b << " of the " << what << " chunk at " << first << " is in two chunks";
      seen[b] = true;
    }
  };
  for (const Chunk& chunk : held) take(chunk.first, chunk.blocks, "held");
  int free_blocks = 0, free_chunks = 0, listed = 0;
  for (int first = 0; first < num_blocks_; ++first) {
    const Node& node = nodes_[first];
    if (!node.free) continue;
    take(first, 1 << node.order, "free");
    free_blocks += 1 << node.order;
    ++free_chunks;
    const int buddy = first ^ (1 << node.order);
    MR_CHECK(buddy >= num_blocks_ || !nodes_[buddy].free || nodes_[buddy].order != node.order)
        << "the free halves at " << first << " and " << buddy << " are not merged";
    MR_CHECK(nodes_[node.next].previous == first && nodes_[node.previous].next == first);
  }
  for (const int count : free_chunks_) listed += count;
  MR_CHECK(free_blocks == free_blocks_ && free_chunks == listed)
      << free_blocks << " blocks free in " << free_chunks << " chunks, recorded " << free_blocks_
      << " in " << listed;
  for (int b = 0; b < num_blocks_; ++b) MR_CHECK(seen[b]) << "block " << b << " is in no chunk";
}

}  // namespace millrace::sched
