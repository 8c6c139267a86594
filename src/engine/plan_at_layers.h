// What a step asks of a hop's layers where some of its sequences run at some of them only
// (StepPlan's only_layers): first of all of them, then of each such part. Pure functions.
#pragma once

#include "core/step_plan.h"

namespace millrace::engine {

// What `plan` asks of a hop of these layers: sequences that do not run at all of them keep their
// tables and no token.
StepPlan PlanAtHop(const StepPlan& plan, LayerRange hop);
// After it, what it asks of some of them: the sequences that run at just these.
StepPlan PlanAtLayers(const StepPlan& plan, LayerRange hop, LayerRange layers);

}  // namespace millrace::engine
