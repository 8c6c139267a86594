#include "sched/order_policy.h"

#include "base/check.h"

namespace millrace::sched {

std::unique_ptr<OrderPolicy> MakeOrderPolicy(SchedulingPolicy policy) {
  switch (policy) {
    case SchedulingPolicy::kFcfs: return MakeFcfsPolicy();
    case SchedulingPolicy::kPriority: return MakePriorityPolicy();
    case SchedulingPolicy::kFair: return MakeFairPolicy();
  }
  MR_CHECK(false) << "no such scheduling policy";
  return nullptr;
}

}  // namespace millrace::sched
