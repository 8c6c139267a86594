#include "sched/prefill_meter.h"

#include <algorithm>

namespace millrace::sched {
namespace {

// Steps of at least this many tokens are measured; the rate is a moving average.
constexpr int kStepTokensMin = 64;
constexpr double kWeight = 0.1;

}  // namespace

void PrefillMeter::Submitted(const StepPlan& plan, Time now) {
  in_flight_.push_back({plan.id, static_cast<int>(plan.tokens.size()), now});
}

bool PrefillMeter::Done(StepId step, Time now) {
  const auto found = std::ranges::find(in_flight_, step, &Step::id);
  if (found == in_flight_.end()) return false;
  const Duration took = now - std::max(found->since, last_end_);
  const int tokens = found->tokens;
  in_flight_.erase(in_flight_.begin(), found + 1);  // steps end in order
  last_end_ = now;
  if (tokens < kStepTokensMin || took.ns <= 0) return false;
  const double rate = tokens / took.seconds();
  costs_.prefill_tokens_per_s += kWeight * (rate - costs_.prefill_tokens_per_s);
  const double weight = std::max(kWeight, 1.0 / static_cast<double>(++steps_measured_));
  measured_tokens_per_s_ += weight * (rate - measured_tokens_per_s_);
  return true;
}

}  // namespace millrace::sched
