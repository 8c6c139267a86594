// First come, first served (Orca section 4.2): by arrival alone.
#include "sched/order_policy.h"

namespace millrace::sched {
namespace {

class FcfsPolicy : public OrderPolicy {
 public:
  OrderKey KeyOf(const NewRequest&, uint64_t arrival) const override { return {0, arrival}; }
};

}  // namespace

std::unique_ptr<OrderPolicy> MakeFcfsPolicy() { return std::make_unique<FcfsPolicy>(); }

}  // namespace millrace::sched
