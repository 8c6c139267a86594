#include "sched/prefill_meter.h"

namespace millrace::sched {
namespace {

// Steps of at least this many tokens are measured; the rate is a moving average.
constexpr int kStepTokensMin = 64;
constexpr double kWeight = 0.1;

}  // namespace

void PrefillMeter::Submitted(const StepPlan& plan, Time now) {
  step_ = plan.id;
  tokens_ = static_cast<int>(plan.tokens.size());
  since_ = now;
}

std::optional<PreemptionCosts> PrefillMeter::Done(StepId step, Time now) {
  const Duration took = now - since_;
  if (step != step_ || tokens_ < kStepTokensMin || took.ns <= 0) return std::nullopt;
  const double rate = tokens_ / took.seconds();
  costs_.prefill_tokens_per_s += kWeight * (rate - costs_.prefill_tokens_per_s);
  return costs_;
}

}  // namespace millrace::sched
