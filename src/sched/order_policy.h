// OrderPolicy: the order of requests. They are admitted in this order and preempted from its end.
// One small file per policy. Owned by the scheduler; one thread.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "sched/scheduler.h"

namespace millrace::sched {

// The smaller key comes first. `number` counts calls of Add and is unique, so the order is total. A
// request that began elsewhere has the position that it would have had if it had been added here
// first.
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
