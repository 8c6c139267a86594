#include "sched/step_budget.h"

#include <algorithm>
#include <utility>

namespace millrace::sched {
namespace {

// Of the prompt tokens of a step that took too long, at least this share stays: one slow step may
// be the machine's.
constexpr double kLeastKept = 0.25;
constexpr double kGrowth = 1.1;        // by a full step that was fast enough
constexpr double kFastEnough = 0.9;    // of the limit
constexpr double kCountsAsFull = 0.9;  // of the budget

}  // namespace

bool StepBudget::Ended(const TimedStep& step) {
  if (step.decodes == 0) return false;  // it delayed no token
  const int prompts = step.tokens - step.decodes;
  const double part = step.round_trip.seconds() / limit_.seconds();
  int next = tokens_;
  if (part > 1 && prompts > 0) {
    const double kept = std::max(1 / part, kLeastKept) * prompts;
    next = std::min(tokens_, step.decodes + static_cast<int>(kept));
  } else if (part < kFastEnough && step.tokens >= kCountsAsFull * tokens_) {
    next = std::min(tokens_max_, static_cast<int>(kGrowth * tokens_) + 1);
  }
  return std::exchange(tokens_, next) != next;
}

}  // namespace millrace::sched
