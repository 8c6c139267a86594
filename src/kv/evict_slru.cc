// Segmented LRU (Karedla et al. 1994): blocks that no prefix match has taken yet go first, then
// those that one has. A crowd of prompts that nobody repeats then leaves in place what others
// share. Of the blocks that were hit, as many are kept apart as kShare allows; the least recently
// used beyond that wait as if they had not been hit.
#include "kv/eviction_order.h"

namespace millrace::kv {
namespace {

constexpr double kShare = 0.8;

class SegmentedLruOrder final : public EvictionOrder {
 public:
  explicit SegmentedLruOrder(std::span<BlockEntry> entries)
      : hit_max_(static_cast<int>(kShare * static_cast<double>(entries.size()))),
        entries_(entries),
        others_(entries),
        hit_(entries) {}

  void Add(BlockIndex block) override {
    if (entries_[block].hits == 0) return others_.PushBack(block);
    hit_.PushBack(block);
    if (++num_hit_ <= hit_max_) return;
    const BlockIndex oldest = hit_.head();
    Remove(oldest);
    entries_[oldest].hits = 0;
    others_.PushBack(oldest);
  }
  void Remove(BlockIndex block) override {
    if (entries_[block].hits == 0) return others_.Remove(block);
    hit_.Remove(block);
    --num_hit_;
  }
  BlockIndex First() const override {
    return others_.head() != BlockList::kEnd ? others_.head() : hit_.head();
  }
  void ForEach(const Visit& visit) const override {
    others_.ForEach(visit);
    hit_.ForEach(visit);
  }

 private:
  const int hit_max_;
  const std::span<BlockEntry> entries_;
  BlockList others_, hit_;
  int num_hit_ = 0;
};

}  // namespace

std::unique_ptr<EvictionOrder> MakeSegmentedLruOrder(std::span<BlockEntry> entries) {
  return std::make_unique<SegmentedLruOrder>(entries);
}

}  // namespace millrace::kv
