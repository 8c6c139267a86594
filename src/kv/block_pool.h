// BlockPool: which tables and transfers hold which of a fixed number of blocks. Accounting only;
// the stage holds the bytes. The constructor allocates everything, and every operation on a
// block is O(1).
//
// A block's state follows from four facts (references, pins, the last step that uses it, whether
// its content is worth keeping); Settle() is the one place where it changes. Blocks without an
// owner are kept in order: free ones on a stack, reused last-in first-out, cached ones in an
// eviction order (eviction_order.h). Callers release a table from its end, so tails are evicted
// before heads. The stack shows which blocks come next, so their entries are prefetched: in a large
// pool they are in no CPU cache.
//
// Pools that share memory have more blocks than memory. Such a pool may hold `limit` blocks. A
// block is held from its first use until the limit takes it away: free blocks first, those that
// were freed first among them, then cached ones. Blocks that are not held are at the bottom of the
// stack, so the limit costs nothing while it does not change. The stage drops the content of the
// blocks that were taken away (TakeReturned).
//
// Owned and called by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "core/ids.h"
#include "kv/block.h"
#include "kv/block_list.h"
#include "kv/eviction_order.h"

namespace millrace::kv {

class BlockPool {
 public:
  // REQUIRES: `eviction` is the name of an order.
  explicit BlockPool(int num_blocks, std::string_view eviction = kLru);

  int total() const { return static_cast<int>(blocks_.size()); }
  int count(BlockState state) const { return counts_[static_cast<int>(state)]; }
  // Blocks that Allocate can return now.
  int available() const {
    return count(BlockState::kFree) + count(BlockState::kCached) - withheld_;
  }
  // Blocks that are neither free nor cached.
  int in_use() const { return total() - count(BlockState::kFree) - count(BlockState::kCached); }
  // The most blocks that may be held; all of them unless LowerLimit was called.
  int limit() const { return total() - withheld_; }
  int held() const { return total() - unheld_; }

  struct Allocation {
    BlockHandle block;
    bool evicted = false;  // its cached content is gone: the prefix index must remove the index
  };
  // A block with one reference: a free one, else the cached one that is first in the eviction
  // order. nullopt when neither exists.
  std::optional<Allocation> Allocate();

  // REQUIRES: limit() <= limit <= total().
  void RaiseLimit(int limit);
  // Lowers the limit as far as free blocks allow. REQUIRES: 0 <= limit <= limit().
  void LowerLimit(int limit);
  // The cached block that is first in the eviction order loses its content and is free. Its index;
  // nullopt: there is none.
  std::optional<BlockIndex> EvictOne();
  // The blocks that LowerLimit took away, each once, except those that are held again and those for
  // which `in_use(block)` is true, which stay for a later call.
  template <typename InUse>
  [[nodiscard]] std::vector<BlockIndex> TakeReturned(InUse in_use) {
    std::vector<BlockIndex> blocks;
    std::erase_if(returned_, [&](BlockIndex i) {
      BlockEntry& b = blocks_[i];
      if (!b.held && in_use(i)) return false;
      b.returned = false;
      if (!b.held) blocks.push_back(i);
      return true;
    });
    return blocks;
  }

  // Adds a table's reference. REQUIRES: not free, not reused since the handle was made.
  void AddRef(BlockHandle block);
  // The same for a table that takes the block's content as a part of its prefix.
  void AddHit(BlockHandle block);
  // Removes a table's reference. `in_use_by`: a step in flight still uses the block for that table;
  // without other references the block is pending until CompleteSteps reaches that step.
  void DropRef(BlockHandle block, std::optional<StepId> in_use_by);
  // Every step up to `step` has ended.
  void CompleteSteps(StepId step);

  // Whether to keep the content when the last reference is dropped.
  void SetCached(BlockIndex block, bool cached);

  // A transfer uses the blocks until Unpin or `until`. Pinning again adds blocks and keeps the
  // later end. REQUIRES: none of them free.
  void Pin(PinId transfer, std::span<const BlockHandle> blocks, Time until);
  // Ends all pins of a transfer; unknown or late calls are ignored.
  void Unpin(PinId transfer);
  // The blocks of a transfer in the order they were pinned; empty when it has none.
  std::span<const BlockHandle> PinnedBy(PinId transfer) const;
  // Ends every pin that has expired.
  void SweepPins(Time now);
  // When the next pin expires.
  std::optional<Time> NextPinExpiry() const;

  // Prefetches the block's entry before it is released.
  void Prefetch(BlockIndex block) const { __builtin_prefetch(&blocks_[block], 1); }
  bool IsCurrent(BlockHandle block) const;
  BlockHandle HandleOf(BlockIndex block) const { return {block, blocks_[block].generation}; }
  int refs(BlockIndex block) const { return blocks_[block].refs; }
  BlockState state(BlockIndex block) const { return blocks_[block].state; }

  // Aborts with the reason unless lists, counts and states agree and block i has expected_refs[i]
  // references (the number of tables that name it).
  void CheckIntegrity(std::span<const int> expected_refs) const;

 private:
  struct PinRecord {
    std::vector<BlockHandle> blocks;
    Time until;
  };

  void EndPin(const PinRecord& pin);
  BlockState StateFor(const BlockEntry& b) const;
  void Settle(BlockIndex block);
  BlockEntry& Checked(BlockHandle handle);
  void CheckAll(BlockState state, std::span<const BlockIndex> blocks) const;
  void CheckFree() const;

  std::vector<BlockEntry> blocks_;  // never resized
  int counts_[kBlockStates] = {};
  std::vector<BlockIndex> free_;  // the last is taken first; the first unheld_ are not held
  int unheld_ = 0;
  int withheld_ = 0;                  // blocks beyond the limit; at most unheld_
  std::vector<BlockIndex> returned_;  // not yet taken by TakeReturned
  std::unique_ptr<EvictionOrder> cached_;
  BlockList pending_;
  std::unordered_map<PinId, PinRecord> pins_;
  Time next_expiry_{INT64_MAX};  // no pin ends sooner
  StepId done_;                  // steps up to here have ended
};

}  // namespace millrace::kv
