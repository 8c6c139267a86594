// vLLM section 6.1, Orca (Max): the longest sequence that the model allows, whatever the request.
#include "sched/reservation_policy.h"

namespace millrace::sched {
namespace {

class OrcaMaxPolicy : public ReservationPolicy {
 public:
  std::optional<int> SlotsFor(const SlotNeed& need) const override { return need.model_len_max; }
  bool contiguous() const override { return true; }
};

}  // namespace

std::unique_ptr<ReservationPolicy> MakeOrcaMaxPolicy() { return std::make_unique<OrcaMaxPolicy>(); }

}  // namespace millrace::sched
