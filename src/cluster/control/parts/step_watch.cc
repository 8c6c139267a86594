#include "cluster/control/parts/step_watch.h"

#include <algorithm>
#include <vector>

namespace millrace::cluster {
namespace {

// REQUIRES: there are values.
double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

void StepWatch::Ended(const sched::TimedStep& step) {
  if (steps_.size() == kStepsKept) steps_.pop_front();
  steps_.push_back(step);
}

Duration StepWatch::LimitFor(int tokens, std::optional<double> prefill_tokens_per_s,
                             const StepWatchLimits& limits) const {
  const bool few = steps_.size() < kStepsMin;
  Duration limit = few ? std::max(limits.first, limits.least) : limits.least;
  if (steps_.empty()) return limit;
  std::vector<double> took_s, per_token_s;
  for (const sched::TimedStep& step : steps_) {
    took_s.push_back(step.took.seconds());
    per_token_s.push_back(step.took.seconds() / std::max(1, step.tokens));
  }
  const double each_s =
      prefill_tokens_per_s ? 1 / *prefill_tokens_per_s : Median(std::move(per_token_s));
  const double likely_s = std::max(Median(std::move(took_s)), each_s * tokens);
  return std::max(limit, Duration::Seconds(limits.factor * likely_s));
}

}  // namespace millrace::cluster
