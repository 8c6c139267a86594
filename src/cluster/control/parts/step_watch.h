// StepWatch: how long a step of a pipeline may take before something that holds it must have
// stopped. It keeps what the pipeline's steps took; the limit is many times that, and longer for
// steps with many tokens.
//
// Owned by its pipeline. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "base/clock.h"
#include "sched/step_timer.h"

namespace millrace::cluster {

struct StepWatchLimits {
  Duration least = Duration::Seconds(10);  // no step is judged sooner
  double factor = 20;                      // times the median of the pipeline's steps
  Duration first = Duration::Seconds(60);  // at least, while few steps have ended
  // A step that is overdue is judged after this time, when its workers have told how they are.
  Duration grace = Duration::Seconds(2);
  // For a worker to open a pipeline, which may wait for a batch and allocates KV.
  Duration open = Duration::Seconds(120);
};

class StepWatch {
 public:
  static constexpr size_t kStepsKept = 64;
  static constexpr size_t kStepsMin = 8;  // that have ended, before the median counts

  void Ended(const sched::TimedStep& step);
  // For a step with so many tokens. `prefill_tokens_per_s`: as measured; nullopt: it was not.
  Duration LimitFor(int tokens, std::optional<double> prefill_tokens_per_s,
                    const StepWatchLimits& limits) const;

 private:
  std::deque<sched::TimedStep> steps_;  // the newest
};

}  // namespace millrace::cluster
