// vLLM section 6.1, Orca (Pow2): the output rounded up to a power of two, at most twice too much.
// If the output's length is not known, its limit is used.
#include <algorithm>
#include <bit>

#include "sched/reservation_policy.h"

namespace millrace::sched {
namespace {

class OrcaPow2Policy : public ReservationPolicy {
 public:
  std::optional<int> SlotsFor(const SlotNeed& need) const override {
    const auto output =
        static_cast<unsigned>(need.known_output_tokens.value_or(need.output_tokens_max));
    return std::min(need.prompt_tokens + static_cast<int>(std::bit_ceil(output)),
                    need.model_len_max);
  }
  bool contiguous() const override { return true; }
};

}  // namespace

std::unique_ptr<ReservationPolicy> MakeOrcaPow2Policy() {
  return std::make_unique<OrcaPow2Policy>();
}

}  // namespace millrace::sched
