// OrderPolicy: who comes first. Requests are admitted in this order and preempted from its end.
// One small file per policy.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "sched/scheduler.h"

namespace millrace::sched {

// Smaller comes first. `arrival` is unique, so the order is total.
struct OrderKey {
  int64_t rank = 0;
  uint64_t arrival = 0;
  friend auto operator<=>(const OrderKey&, const OrderKey&) = default;
};

class OrderPolicy {
 public:
  virtual ~OrderPolicy() = default;
  virtual OrderKey KeyOf(const NewRequest& request, uint64_t arrival) const = 0;
};

std::unique_ptr<OrderPolicy> MakeFcfsPolicy();
std::unique_ptr<OrderPolicy> MakePriorityPolicy();
std::unique_ptr<OrderPolicy> MakeOrderPolicy(SchedulingPolicy policy);

}  // namespace millrace::sched
