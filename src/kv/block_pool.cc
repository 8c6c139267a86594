#include "kv/block_pool.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::kv {
namespace {

constexpr size_t kPrefetchAhead = 8;

}  // namespace

const char* BlockStateName(BlockState state) {
  switch (state) {
    case BlockState::kFree: return "free";
    case BlockState::kCached: return "cached";
    case BlockState::kOwned: return "owned";
    case BlockState::kPinned: return "pinned";
    case BlockState::kPendingFree: return "pending free";
  }
  return "unknown";
}

BlockPool::BlockPool(int num_blocks, std::string_view eviction)
    : blocks_(num_blocks), cached_(MakeEvictionOrder(eviction, blocks_)), pending_(blocks_) {
  MR_CHECK(cached_) << "no eviction order is named " << eviction;
  free_.reserve(num_blocks);
  for (BlockIndex i = num_blocks; i-- > 0;) free_.push_back(i);
  counts_[static_cast<int>(BlockState::kFree)] = unheld_ = num_blocks;
}

std::optional<BlockPool::Allocation> BlockPool::Allocate() {
  const bool evicted = std::ssize(free_) == withheld_;
  const BlockIndex i = evicted ? cached_->First() : free_.back();
  if (i == BlockList::kEnd) return std::nullopt;
  if (free_.size() > kPrefetchAhead) Prefetch(free_[free_.size() - 1 - kPrefetchAhead]);
  BlockEntry& b = blocks_[i];
  b.cached = false;
  b.held = true;
  b.refs = 1;
  ++b.generation;
  Settle(i);
  b.hits = 0;
  if (std::ssize(free_) < unheld_) unheld_ = static_cast<int>(free_.size());
  return Allocation{{i, b.generation}, evicted};
}

void BlockPool::RaiseLimit(int limit) {
  MR_CHECK(this->limit() <= limit && limit <= total()) << limit;
  withheld_ = total() - limit;
}

void BlockPool::LowerLimit(int limit) {
  withheld_ = std::min(total() - limit, static_cast<int>(free_.size()));
  for (; unheld_ < withheld_; ++unheld_) {
    BlockEntry& b = blocks_[free_[unheld_]];
    b.held = false;
    if (!b.returned) returned_.push_back(free_[unheld_]);
    b.returned = true;
  }
}

std::optional<BlockIndex> BlockPool::EvictOne() {
  const BlockIndex block = cached_->First();
  if (block == BlockList::kEnd) return std::nullopt;
  SetCached(block, false);
  return block;
}

void BlockPool::AddRef(BlockHandle block) {
  BlockEntry& b = Checked(block);
  MR_CHECK(b.state != BlockState::kFree) << "block " << block.index << " is free";
  ++b.refs;
  Settle(block.index);
}

void BlockPool::AddHit(BlockHandle block) {
  AddRef(block);
  uint8_t& hits = blocks_[block.index].hits;
  if (hits < UINT8_MAX) ++hits;
}

void BlockPool::DropRef(BlockHandle block, std::optional<StepId> in_use_by) {
  BlockEntry& b = Checked(block);
  MR_CHECK(b.refs > 0) << "block " << block.index << " released twice";
  --b.refs;
  if (in_use_by) b.last_step = std::max(b.last_step, *in_use_by);
  Settle(block.index);
}

void BlockPool::CompleteSteps(StepId step) {
  if (step <= done_) return;
  done_ = step;
  pending_.ForEach([&](BlockIndex block) { Settle(block); });
}

void BlockPool::SetCached(BlockIndex block, bool cached) {
  blocks_[block].cached = cached;
  Settle(block);
}

void BlockPool::Pin(PinId transfer, std::span<const BlockHandle> blocks, Time until) {
  if (blocks.empty() && !pins_.contains(transfer)) return;
  PinRecord& pin = pins_[transfer];
  for (BlockHandle handle : blocks) {
    BlockEntry& b = Checked(handle);
    MR_CHECK(b.state != BlockState::kFree) << "block " << handle.index << " is free";
    ++b.pins;
    pin.blocks.push_back(handle);
    Settle(handle.index);
  }
  pin.until = std::max(pin.until, until);
  next_expiry_ = std::min(next_expiry_, pin.until);
}

void BlockPool::EndPin(const PinRecord& pin) {
  for (BlockHandle handle : pin.blocks) {
    --Checked(handle).pins;
    Settle(handle.index);
  }
}

void BlockPool::Unpin(PinId transfer) {
  const auto found = pins_.find(transfer);
  if (found == pins_.end()) return;
  EndPin(found->second);
  pins_.erase(found);
}

std::span<const BlockHandle> BlockPool::PinnedBy(PinId transfer) const {
  const auto found = pins_.find(transfer);
  if (found == pins_.end()) return {};
  return found->second.blocks;
}

void BlockPool::SweepPins(Time now) {
  if (now < next_expiry_) return;
  // Sorted by id, so that the order in which blocks become free is a function of the calls.
  std::vector<PinId> ended;
  for (const auto& [transfer, pin] : pins_) {
    if (pin.until <= now) ended.push_back(transfer);
  }
  std::ranges::sort(ended);
  for (const PinId transfer : ended) Unpin(transfer);
  next_expiry_ = NextPinExpiry().value_or(Time{INT64_MAX});
}

std::optional<Time> BlockPool::NextPinExpiry() const {
  std::optional<Time> next;
  for (const auto& [transfer, pin] : pins_) {
    if (!next || pin.until < *next) next = pin.until;
  }
  return next;
}

bool BlockPool::IsCurrent(BlockHandle block) const {
  return block.index >= 0 && block.index < total() &&
         blocks_[block.index].generation == block.generation;
}

BlockState BlockPool::StateFor(const BlockEntry& b) const {
  if (b.refs > 0) return BlockState::kOwned;
  if (b.pins > 0) return BlockState::kPinned;
  if (b.last_step > done_) return BlockState::kPendingFree;
  return b.cached ? BlockState::kCached : BlockState::kFree;
}

void BlockPool::Settle(BlockIndex block) {
  BlockEntry& b = blocks_[block];
  const BlockState next = StateFor(b);
  if (next == b.state) return;
  if (b.state == BlockState::kFree) {
    MR_CHECK(free_.back() == block) << "block " << block << " is not the next free one";
    free_.pop_back();
  } else if (b.state == BlockState::kCached) {
    cached_->Remove(block);
  } else if (b.state == BlockState::kPendingFree) {
    pending_.Remove(block);
  }
  --counts_[static_cast<int>(b.state)];
  b.state = next;
  ++counts_[static_cast<int>(next)];
  if (next == BlockState::kFree) {
    free_.push_back(block);
  } else if (next == BlockState::kCached) {
    cached_->Add(block);
  } else if (next == BlockState::kPendingFree) {
    pending_.PushBack(block);
  }
}

BlockEntry& BlockPool::Checked(BlockHandle handle) {
  MR_CHECK(IsCurrent(handle)) << "block " << handle.index << " generation " << handle.generation
                              << " is not current";
  return blocks_[handle.index];
}

// Other checks cover states and counts; here it is enough that the blocks are distinct.
void BlockPool::CheckAll(BlockState state, std::span<const BlockIndex> blocks) const {
  std::vector<bool> seen(blocks_.size());
  for (const BlockIndex i : blocks) {
    MR_CHECK(blocks_[i].state == state)
        << "block " << i << " is " << BlockStateName(blocks_[i].state) << " in the list of "
        << BlockStateName(state);
    MR_CHECK(!seen[i]) << "block " << i << " is twice in the list of " << BlockStateName(state);
    seen[i] = true;
  }
  MR_CHECK(std::ssize(blocks) == count(state))
      << "the list of " << BlockStateName(state) << " lost blocks";
}

void BlockPool::CheckFree() const {
  MR_CHECK(0 <= withheld_ && withheld_ <= unheld_ && unheld_ <= std::ssize(free_))
      << withheld_ << " blocks are beyond the limit, " << unheld_ << " are not held";
  for (size_t at = 0; at < free_.size(); ++at) {
    MR_CHECK(blocks_[free_[at]].held == std::cmp_greater_equal(at, unheld_))
        << "free block " << free_[at] << " is in the wrong part of the free list";
  }
}

void BlockPool::CheckIntegrity(std::span<const int> expected_refs) const {
  MR_CHECK(std::ssize(expected_refs) == total());
  std::vector<int> pins(blocks_.size(), 0);
  for (const auto& [transfer, pin] : pins_) {
    for (BlockHandle handle : pin.blocks) ++pins[handle.index];
  }
  int counts[kBlockStates] = {};
  for (BlockIndex i = 0; i < total(); ++i) {
    const BlockEntry& b = blocks_[i];
    MR_CHECK(b.refs == expected_refs[i])
        << "block " << i << " has " << b.refs << " references, tables name it " << expected_refs[i];
    MR_CHECK(b.pins == pins[i]) << "block " << i << " has " << b.pins << " pins, not " << pins[i];
    MR_CHECK(b.state == StateFor(b)) << "block " << i << " is " << BlockStateName(b.state)
                                     << ", should be " << BlockStateName(StateFor(b));
    ++counts[static_cast<int>(b.state)];
  }
  int sum = 0;
  for (int s = 0; s < kBlockStates; ++s) {
    MR_CHECK(counts[s] == counts_[s]) << BlockStateName(static_cast<BlockState>(s)) << ": counted "
                                      << counts[s] << ", recorded " << counts_[s];
    sum += counts_[s];
  }
  MR_CHECK(sum == total()) << "free + cached + owned + pinned + pending is " << sum << " of "
                           << total();
  CheckFree();
  CheckAll(BlockState::kFree, free_);
  std::vector<BlockIndex> listed;
  const auto list = [&](BlockIndex block) { listed.push_back(block); };
  cached_->ForEach(list);
  CheckAll(BlockState::kCached, listed);
  listed.clear();
  pending_.ForEach(list);
  CheckAll(BlockState::kPendingFree, listed);
}

}  // namespace millrace::kv
