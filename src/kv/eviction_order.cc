#include "kv/eviction_order.h"

namespace millrace::kv {

#define MILLRACE_EVICTION_ORDER(name, make) \
  std::unique_ptr<EvictionOrder> make(std::span<BlockEntry> entries);
#include "kv/eviction_orders.inc"
#undef MILLRACE_EVICTION_ORDER

namespace {

struct NamedOrder {
  std::string_view name;
  std::unique_ptr<EvictionOrder> (*make)(std::span<BlockEntry> entries);
};

constexpr NamedOrder kOrders[] = {
#define MILLRACE_EVICTION_ORDER(name, make) {name, make},
#include "kv/eviction_orders.inc"
#undef MILLRACE_EVICTION_ORDER
};

}  // namespace

std::unique_ptr<EvictionOrder> MakeEvictionOrder(std::string_view name,
                                                 std::span<BlockEntry> entries) {
  for (const NamedOrder& order : kOrders) {
    if (order.name == name) return order.make(entries);
  }
  return nullptr;
}

std::vector<std::string> EvictionOrderNames() {
  std::vector<std::string> names;
  for (const NamedOrder& order : kOrders) names.emplace_back(order.name);
  return names;
}

}  // namespace millrace::kv
