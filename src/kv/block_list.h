// BlockEntry: what a pool knows of one of its blocks. BlockList: some of a pool's blocks in an
// order; its links are in the entries, so a block is in one list at most. Every operation is O(1)
// and allocates nothing. Owned and called by the pool's thread.
#pragma once

#include <cstdint>
#include <span>

#include "core/ids.h"
#include "kv/block.h"

namespace millrace::kv {

struct BlockEntry {
  // Stands for no block: a link at both ends of a list, and the head of an empty one.
  static constexpr BlockIndex kEnd = INT32_MAX;

  BlockState state = BlockState::kFree;
  bool cached = false;  // its content is worth keeping
  // Prefix matches that took its content, as far as a byte counts. Only the eviction order changes
  // those of a cached block.
  uint8_t hits = 0;
  bool held : 1 = false;      // counts towards the pool's limit
  bool returned : 1 = false;  // listed by the pool for TakeReturned
  int32_t refs = 0;
  int32_t pins = 0;
  uint32_t generation = 0;
  StepId last_step;  // the last step in flight that a dropped reference named
  BlockIndex previous = kEnd;
  BlockIndex next = kEnd;
};
static_assert(sizeof(BlockEntry) == 32, "two to a cache line");

class BlockList {
 public:
  static constexpr BlockIndex kEnd = BlockEntry::kEnd;

  // `entries`: not owned; outlives this object.
  explicit BlockList(std::span<BlockEntry> entries) : entries_(entries) {}

  BlockIndex head() const { return head_; }
  // REQUIRES: the block is in no list.
  void PushBack(BlockIndex block) {
    entries_[block].previous = tail_;
    entries_[block].next = kEnd;
    (tail_ == kEnd ? head_ : entries_[tail_].next) = block;
    tail_ = block;
  }
  // REQUIRES: the block is in this list.
  void Remove(BlockIndex block) {
    const BlockEntry& e = entries_[block];
    (e.previous == kEnd ? head_ : entries_[e.previous].next) = e.next;
    (e.next == kEnd ? tail_ : entries_[e.next].previous) = e.previous;
  }
  // Calls visit(block) for each block in order; visit may remove the block.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (BlockIndex i = head_; i != kEnd;) {
      const BlockIndex next = entries_[i].next;
      visit(i);
      i = next;
    }
  }

 private:
  std::span<BlockEntry> entries_;
  BlockIndex head_ = kEnd;
  BlockIndex tail_ = kEnd;
};

}  // namespace millrace::kv
