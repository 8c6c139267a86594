#include "sched/step_timer.h"

#include <algorithm>

namespace millrace::sched {

void StepTimer::Submitted(const StepPlan& plan, Time now) {
  const auto decodes = std::ranges::count(plan.sequences, 1, &SequenceStep::num_tokens);
  in_flight_.push_back(
      {plan.id, static_cast<int>(plan.tokens.size()), static_cast<int>(decodes), now});
}

std::optional<StepTimer::Waiting> StepTimer::Oldest() const {
  if (in_flight_.empty()) return std::nullopt;
  const Step& oldest = in_flight_.front();
  return Waiting{oldest.tokens, std::max(oldest.since, last_end_)};
}

std::optional<TimedStep> StepTimer::Done(StepId step, Time now) {
  const auto found = std::ranges::find(in_flight_, step, &Step::id);
  if (found == in_flight_.end()) return std::nullopt;
  const TimedStep timed{.tokens = found->tokens,
                        .decodes = found->decodes,
                        .took = now - std::max(found->since, last_end_),
                        .round_trip = now - found->since};
  in_flight_.erase(in_flight_.begin(), found + 1);
  last_end_ = now;
  return timed;
}

}  // namespace millrace::sched
