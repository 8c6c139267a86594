// Smaller priority first, then by arrival. A steady stream of urgent requests may starve the rest;
// among equals no request starves.
#include "sched/order_policy.h"

namespace millrace::sched {
namespace {

class PriorityPolicy : public OrderPolicy {
 public:
  OrderKey Join(const NewRequest& request, Time arrived, uint64_t number, int&) override {
    return {request.priority, arrived, number};
  }
};

}  // namespace

std::unique_ptr<OrderPolicy> MakePriorityPolicy() { return std::make_unique<PriorityPolicy>(); }

}  // namespace millrace::sched
