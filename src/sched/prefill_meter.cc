#include "sched/prefill_meter.h"

#include <algorithm>

namespace millrace::sched {
namespace {

// Steps of at least this many tokens are measured; the rate is a moving average.
constexpr int kStepTokensMin = 64;
constexpr double kWeight = 0.1;

}  // namespace

bool PrefillMeter::Ended(const TimedStep& step) {
  if (step.tokens < kStepTokensMin || step.took.ns <= 0) return false;
  const double rate = step.tokens / step.took.seconds();
  costs_.prefill_tokens_per_s += kWeight * (rate - costs_.prefill_tokens_per_s);
  const double weight = std::max(kWeight, 1.0 / static_cast<double>(++steps_measured_));
  measured_tokens_per_s_ += weight * (rate - measured_tokens_per_s_);
  return true;
}

}  // namespace millrace::sched
