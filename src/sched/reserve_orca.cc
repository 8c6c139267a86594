// Orca (OSDI'22 section 4.2, Algorithm 1): a request's own prompt and maximum of generated tokens.
#include "sched/reservation_policy.h"

namespace millrace::sched {
namespace {

class OrcaPolicy : public ReservationPolicy {
 public:
  std::optional<int> SlotsFor(const SlotNeed& need) const override {
    return need.prompt_tokens + need.output_tokens_max;
  }
};

}  // namespace

std::unique_ptr<ReservationPolicy> MakeOrcaPolicy() { return std::make_unique<OrcaPolicy>(); }

}  // namespace millrace::sched
