#include "sched/kv_transfers.h"

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

namespace millrace::sched {
namespace {

// Every pull ends, so its pin needs no end of its own.
constexpr Time kForEver{std::numeric_limits<int64_t>::max()};

// Held KV and a pull of the same request are two transfers, because a request may return to the
// scheduler that it left.
constexpr uint64_t kPullBit = uint64_t{1} << 63;
kv::PinId HoldOf(RequestId id) { return kv::PinId(id.value()); }
kv::PinId PullOf(RequestId id) { return kv::PinId(id.value() | kPullBit); }

}  // namespace

IncomingPulls::IncomingPulls(kv::BlockPool& pool, int block_size)
    : pool_(pool), block_size_(block_size), read_by_(static_cast<size_t>(pool.total())) {}

void IncomingPulls::NoteReads(std::span<const BlockCopy> copies, StepId step) {
  for (const BlockCopy& copy : copies) read_by_[static_cast<size_t>(copy.from)] = step;
}

void IncomingPulls::DropReads(std::span<const BlockCopy> copies, StepId step) {
  for (const BlockCopy& copy : copies) read_by_[static_cast<size_t>(copy.from)] = StepId();
  for (Asked& asked : waiting_) {
    if (asked.after == step) asked.after = StepId();
  }
}

void IncomingPulls::Ask(RequestId id, int index, int first_token, int end_token,
                        const kv::BlockTable& table) {
  Asked& asked = waiting_.emplace_back();
  asked.pull = {.id = id, .index = index, .first_token = first_token, .end_token = end_token};
  for (kv::BlockHandle block : table) {
    asked.pull.blocks.push_back(block.index);
    asked.after = std::max(asked.after, read_by_[static_cast<size_t>(block.index)]);
  }
  const auto first_block = static_cast<size_t>(first_token / block_size_);
  pool_.Pin(PullOf(id), std::span(table).subspan(first_block), kForEver);
  ++due_[id];
}

void IncomingPulls::TakeReady(StepId first_in_flight, std::vector<KvPull>& pulls) {
  std::erase_if(waiting_, [&](Asked& asked) {
    const bool ready = asked.after < first_in_flight;
    if (ready) pulls.push_back(std::move(asked.pull));
    return ready;
  });
}

bool IncomingPulls::AnyWaitsFor(StepId step) const {
  return std::ranges::any_of(waiting_, [&](const Asked& asked) { return asked.after == step; });
}

bool IncomingPulls::End(RequestId id) {
  const auto found = due_.find(id);
  if (found == due_.end()) return false;
  if (--found->second > 0) return true;
  due_.erase(found);
  pool_.Unpin(PullOf(id));
  return true;
}

bool KvHolds::Hold(RequestId id, std::span<const kv::BlockHandle> blocks, Time until) {
  const auto held = pool_.PinnedBy(HoldOf(id));
  if (held.size() > blocks.size() || !std::ranges::equal(held, blocks.first(held.size()))) {
    return false;
  }
  pool_.Pin(HoldOf(id), blocks.subspan(held.size()), until);
  return true;
}

bool KvHolds::Hold(RequestId id, std::span<const SequenceKv> kv, Time until) {
  const auto held = BlocksOf(id);
  std::unordered_set<BlockIndex> seen;
  if (kv.size() > 1) seen.insert(held.begin(), held.end());
  std::vector<kv::BlockHandle> blocks;
  for (const SequenceKv& s : kv) {
    for (BlockIndex block : s.blocks) {
      if (seen.insert(block).second) blocks.push_back(pool_.HandleOf(block));
    }
  }
  if (kv.size() <= 1) return Hold(id, blocks, until);
  pool_.Pin(HoldOf(id), blocks, until);
  return true;
}

std::vector<BlockIndex> KvHolds::BlocksOf(RequestId id) const {
  std::vector<BlockIndex> blocks;
  for (kv::BlockHandle block : pool_.PinnedBy(HoldOf(id))) blocks.push_back(block.index);
  return blocks;
}

bool KvHolds::Extend(RequestId id, Time now, Duration hold) {
  pool_.SweepPins(now);
  if (pool_.PinnedBy(HoldOf(id)).empty()) return false;
  pool_.Pin(HoldOf(id), {}, now + hold);
  return true;
}

void KvHolds::Release(RequestId id) { pool_.Unpin(HoldOf(id)); }

}  // namespace millrace::sched
