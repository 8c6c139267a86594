// What to say when no plan keeps the latency limits: the fastest plan's latencies, which limit
// binds, and the device that one would have to add. One thread.
#pragma once

#include "apps/plan/inputs.h"
#include "base/status.h"
#include "plan/rank_plans.h"

namespace millrace::apps {

// The kFailedPrecondition that SearchGoodput returns. `problem` has the limits; `search` the budget
// of a search for the fastest plan.
Status NoPlanMeetsLimits(const PlanInputs& inputs, const plan::GoodputProblem& problem,
                         const plan::CandidateOptions& search);

}  // namespace millrace::apps
