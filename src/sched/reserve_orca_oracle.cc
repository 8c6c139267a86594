// vLLM section 6.1, Orca (Oracle): exactly what will be used, if that is known (replayed traces),
// else the limit. A sequence that outgrows its promise asks for more while it runs.
#include "sched/reservation_policy.h"

namespace millrace::sched {
namespace {

class OrcaOraclePolicy : public ReservationPolicy {
 public:
  std::optional<int> SlotsFor(const SlotNeed& need) const override {
    return need.prompt_tokens + need.known_output_tokens.value_or(need.output_tokens_max);
  }
  bool contiguous() const override { return true; }
};

}  // namespace

std::unique_ptr<ReservationPolicy> MakeOrcaOraclePolicy() {
  return std::make_unique<OrcaOraclePolicy>();
}

}  // namespace millrace::sched
