// OrderPolicy: who comes first. Requests are admitted in this order and preempted from its end.
// One small file per policy.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "sched/scheduler.h"

namespace millrace::sched {

// Smaller comes first. `number` counts Adds and is unique, so the order is total; a request that
// began elsewhere stands where it would have stood had it come here at once.
struct OrderKey {
  int64_t rank = 0;
  Time arrived;
  uint64_t number = 0;
  friend auto operator<=>(const OrderKey&, const OrderKey&) = default;
};

class OrderPolicy {
 public:
  virtual ~OrderPolicy() = default;
  virtual OrderKey KeyOf(const NewRequest& request, Time arrived, uint64_t number) const = 0;
};

std::unique_ptr<OrderPolicy> MakeFcfsPolicy();
std::unique_ptr<OrderPolicy> MakePriorityPolicy();
std::unique_ptr<OrderPolicy> MakeOrderPolicy(SchedulingPolicy policy);

}  // namespace millrace::sched
