// BlockPool: who holds which of a fixed number of blocks. Accounting only; the bytes live with the
// executor. Everything is allocated in the constructor and every operation on a block is O(1).
//
// A block's state follows from four facts (references, pins, the last step that uses it, whether
// its content is worth keeping); Settle() is the one place where it changes. Blocks without an
// owner wait in order: free ones on a stack, reused last-in first-out, cached ones in an intrusive
// list in the order they were given up (vLLM's LRU). Whoever gives up a table does so from its end,
// so tails are evicted before heads. Which blocks are taken next stands on the stack: they are
// asked for from memory in time, since the blocks of a large pool are in no cache.
//
// Owned and called by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "core/ids.h"
#include "kv/block.h"

namespace millrace::kv {

class BlockPool {
 public:
  explicit BlockPool(int num_blocks);

  int total() const { return static_cast<int>(blocks_.size()); }
  int count(BlockState state) const { return counts_[static_cast<int>(state)]; }
  // What Allocate can give now.
  int available() const { return count(BlockState::kFree) + count(BlockState::kCached); }

  struct Allocation {
    BlockHandle block;
    bool evicted = false;  // its cached content is gone: the prefix index must forget the index
  };
  // A block with one reference: a free one, else the least recently used cached one. nullopt when
  // neither exists.
  std::optional<Allocation> Allocate();

  // One more table names the block. REQUIRES: not free, not reused since the handle was made.
  void AddRef(BlockHandle block);
  // One table fewer. `in_use_by`: a step in flight still reads or writes it for that table; without
  // other references the block is pending until CompleteSteps reaches that step.
  void DropRef(BlockHandle block, std::optional<StepId> in_use_by);
  // Every step up to `step` has ended.
  void CompleteSteps(StepId step);

  // Whether the content is worth keeping when the last reference goes.
  void SetCached(BlockIndex block, bool cached);

  // A transfer reads or writes the blocks until Unpin or `until`. Pinned again, a transfer has more
  // blocks and the later end. REQUIRES: none of them free.
  void Pin(TransferId transfer, std::span<const BlockHandle> blocks, Time until);
  // Ends all pins of a transfer; unknown or late signals are ignored.
  void Unpin(TransferId transfer);
  // The blocks of a transfer in the order they were pinned; empty when it has none.
  std::span<const BlockHandle> PinnedBy(TransferId transfer) const;
  // Ends every pin whose time has come.
  void SweepPins(Time now);
  // When the next pin runs out.
  std::optional<Time> NextPinExpiry() const;

  // Asks for the block's memory, for who is about to give it up.
  void Prefetch(BlockIndex block) const { __builtin_prefetch(&blocks_[block], 1); }
  bool IsCurrent(BlockHandle block) const;
  BlockHandle HandleOf(BlockIndex block) const { return {block, blocks_[block].generation}; }
  int refs(BlockIndex block) const { return blocks_[block].refs; }
  BlockState state(BlockIndex block) const { return blocks_[block].state; }

  // Aborts with the reason unless lists, counts and states agree and block i has expected_refs[i]
  // references (the number of tables that name it).
  void CheckIntegrity(std::span<const int> expected_refs) const;

 private:
  struct Block {
    BlockState state = BlockState::kFree;
    bool cached = false;
    int32_t refs = 0;
    int32_t pins = 0;
    uint32_t generation = 0;
    StepId last_step;  // the last step in flight that a dropped reference named
    // Neighbours in the list of the state; kEnd at both ends.
    BlockIndex previous = kEnd;
    BlockIndex next = kEnd;
  };
  struct List {
    BlockIndex head = kEnd;
    BlockIndex tail = kEnd;
  };
  struct PinRecord {
    std::vector<BlockHandle> blocks;
    Time until;
  };
  static constexpr BlockIndex kEnd = INT32_MAX;

  void EndPin(const PinRecord& pin);
  BlockState StateFor(const Block& b) const;
  void Settle(BlockIndex block);
  List* ListOf(BlockState state);
  const List* ListOf(BlockState state) const;
  void PushBack(List& list, BlockIndex block);
  void Remove(List& list, BlockIndex block);
  Block& Checked(BlockHandle handle);
  int CheckList(BlockState state) const;
  int CheckFree() const;

  std::vector<Block> blocks_;
  int counts_[kBlockStates] = {};
  std::vector<BlockIndex> free_;  // the last is taken first
  List cached_, pending_;
  std::unordered_map<TransferId, PinRecord> pins_;
  Time next_expiry_{INT64_MAX};  // no pin ends sooner
  StepId done_;                  // steps up to here have ended
};

}  // namespace millrace::kv
