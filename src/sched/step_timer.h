// StepTimer: how long the steps of a pipeline take. Several may be in flight; they end in order.
//
// Owned by the driver of a scheduler; one thread.
#pragma once

#include <deque>
#include <optional>

#include "base/clock.h"
#include "core/step_plan.h"

namespace millrace::sched {

struct TimedStep {
  int tokens = 0;
  int decodes = 0;      // sequences with one token
  Duration took;        // since the step before it ended: until then the stages were busy with that
  Duration round_trip;  // since it was submitted
};

class StepTimer {
 public:
  void Submitted(const StepPlan& plan, Time now);
  struct Waiting {
    int tokens = 0;
    Time since;  // it was submitted, or the step before it ended
  };
  // The step that ends next. nullopt: none is in flight.
  std::optional<Waiting> Oldest() const;
  // nullopt: the step is unknown.
  std::optional<TimedStep> Done(StepId step, Time now);

 private:
  struct Step {
    StepId id;
    int tokens = 0, decodes = 0;
    Time since;
  };

  std::deque<Step> in_flight_;  // in the order of submission
  Time last_end_;
};

}  // namespace millrace::sched
