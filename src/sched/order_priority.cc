// Smaller priority first, then by arrival. A steady stream of urgent requests may starve the rest;
// among equals nobody starves.
#include "sched/order_policy.h"

namespace millrace::sched {
namespace {

class PriorityPolicy : public OrderPolicy {
 public:
  OrderKey KeyOf(const NewRequest& request, uint64_t arrival) const override {
    return {request.priority, arrival};
  }
};

}  // namespace

std::unique_ptr<OrderPolicy> MakePriorityPolicy() { return std::make_unique<PriorityPolicy>(); }

}  // namespace millrace::sched
