// EvictionOrder: the order in which the prefix cache gives up blocks. It has the cached blocks,
// which no table and no transfer names, and says which of them is next to lose its content. One
// small file per order, and a line in eviction_orders.inc. Owned by a pool and called by its
// thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "kv/block_list.h"

namespace millrace::kv {

inline constexpr std::string_view kLru = "lru";

class EvictionOrder {
 public:
  virtual ~EvictionOrder() = default;
  // The block has become cached. The blocks of a table come from its end, so that tails can be
  // evicted before heads.
  virtual void Add(BlockIndex block) = 0;
  // It is used again, or its content is gone. REQUIRES: it was added.
  virtual void Remove(BlockIndex block) = 0;
  // The block to evict; BlockList::kEnd when there is none.
  virtual BlockIndex First() const = 0;
  // The blocks in the order in which First would name them. For checks.
  using Visit = std::function<void(BlockIndex)>;
  virtual void ForEach(const Visit& visit) const = 0;
};

// For the pool of these blocks; they outlive the order. Null: there is no order of that name.
std::unique_ptr<EvictionOrder> MakeEvictionOrder(std::string_view name,
                                                 std::span<BlockEntry> entries);

// In the order of eviction_orders.inc.
std::vector<std::string> EvictionOrderNames();

}  // namespace millrace::kv
