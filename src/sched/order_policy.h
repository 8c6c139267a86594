// OrderPolicy: the order of requests. They are admitted in this order and preempted from its end.
// One small file per policy. Owned by the scheduler; one thread.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "sched/scheduler.h"

namespace millrace::sched {

// The smaller key comes first. `number` is unique, so the order is total. A request that began
// elsewhere has the position that it would have had if it had been added here first.
struct OrderKey {
  int64_t rank = 0;
  Time arrived;
  uint64_t number = 0;
  friend auto operator<=>(const OrderKey&, const OrderKey&) = default;
};

class OrderPolicy {
 public:
  virtual ~OrderPolicy() = default;
  // A request was added. `number` counts calls of Join and Start. `client`: set to what the calls
  // below name its client.
  virtual OrderKey Join(const NewRequest& request, Time arrived, uint64_t number, int& client) = 0;

  // The rest is for policies whose order changes while requests wait. The others do nothing.
  virtual bool reorders() const { return false; }
  // All requests that have started are of this rank.
  static constexpr int64_t kStartedRank = 0;
  // The rank whose first request should start next, if none is of kStartedRank. nullopt: the order
  // of the keys holds.
  virtual std::optional<int64_t> NextRank() const { return std::nullopt; }
  // A request that waits by NextRank starts; its new key. REQUIRES: NextRank has a value.
  virtual OrderKey Start(int /*client*/, uint64_t number) { return {kStartedRank, {}, number}; }
  // One that waits by NextRank ends or leaves before it has started.
  virtual void Drop(int /*client*/) {}
  // A request has ended or left.
  virtual void Leave(int /*client*/) {}
  // Tokens were computed for the client.
  virtual void Charge(int /*client*/, int64_t /*prompt_tokens*/, int64_t /*output_tokens*/) {}
};

std::unique_ptr<OrderPolicy> MakeFcfsPolicy();
std::unique_ptr<OrderPolicy> MakePriorityPolicy();
std::unique_ptr<OrderPolicy> MakeFairPolicy();
std::unique_ptr<OrderPolicy> MakeOrderPolicy(SchedulingPolicy policy);

}  // namespace millrace::sched
