// vLLM (SOSP'23 section 4): nothing is promised; blocks are taken as tokens are computed.
#include "sched/reservation_policy.h"

namespace millrace::sched {
namespace {

class PagedPolicy : public ReservationPolicy {
 public:
  std::optional<int> SlotsFor(const SlotNeed&) const override { return std::nullopt; }
};

}  // namespace

std::unique_ptr<ReservationPolicy> MakePagedPolicy() { return std::make_unique<PagedPolicy>(); }

}  // namespace millrace::sched
