#include "sched/step_budget.h"

#include <algorithm>
#include <utility>

namespace millrace::sched {
namespace {

constexpr int kSteps = 16;           // whose mean decides, or fewer that took as long as these may
constexpr double kLeastKept = 0.25;  // of the largest of them
constexpr double kGrowth = 1.25;     // if the largest was full and they were fast enough
constexpr double kFastEnough = 0.9;  // of the limit
constexpr double kCountsAsFull = 0.9;  // of the budget

}  // namespace

bool StepBudget::Ended(const TimedStep& step) {
  if (step.decodes == 0) return false;  // it delayed no token
  took_ = took_ + step.round_trip;
  tokens_most_ = std::max(tokens_most_, step.tokens);
  prompts_ = prompts_ || step.tokens > step.decodes;
  ++steps_;
  if (steps_ < kSteps && took_.seconds() < kSteps * limit_.seconds()) return false;
  const double part = took_.seconds() / (limit_.seconds() * steps_);
  int next = tokens_;
  if (part > 1 && prompts_) {
    next = std::min(tokens_, static_cast<int>(tokens_most_ * std::max(1 / part, kLeastKept)));
  } else if (part < kFastEnough && tokens_most_ >= kCountsAsFull * tokens_) {
    next = std::min(tokens_max_, static_cast<int>(kGrowth * tokens_) + 1);
  }
  steps_ = tokens_most_ = 0;
  prompts_ = false;
  took_ = {};
  return std::exchange(tokens_, next) != next;
}

}  // namespace millrace::sched
