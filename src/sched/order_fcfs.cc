// First come, first served (Orca section 4.2): by arrival alone.
#include "sched/order_policy.h"

namespace millrace::sched {
namespace {

class FcfsPolicy : public OrderPolicy {
 public:
  OrderKey Join(const NewRequest&, Time arrived, uint64_t number, int&) override {
    return {0, arrived, number};
  }
};

}  // namespace

std::unique_ptr<OrderPolicy> MakeFcfsPolicy() { return std::make_unique<FcfsPolicy>(); }

}  // namespace millrace::sched
