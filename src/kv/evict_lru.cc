// Least recently used: in the order in which the blocks were released (vLLM's).
#include "kv/eviction_order.h"

namespace millrace::kv {
namespace {

class LruOrder final : public EvictionOrder {
 public:
  explicit LruOrder(std::span<BlockEntry> entries) : blocks_(entries) {}
  void Add(BlockIndex block) override { blocks_.PushBack(block); }
  void Remove(BlockIndex block) override { blocks_.Remove(block); }
  BlockIndex First() const override { return blocks_.head(); }
  void ForEach(const Visit& visit) const override { blocks_.ForEach(visit); }

 private:
  BlockList blocks_;
};

}  // namespace

std::unique_ptr<EvictionOrder> MakeLruOrder(std::span<BlockEntry> entries) {
  return std::make_unique<LruOrder>(entries);
}

}  // namespace millrace::kv
