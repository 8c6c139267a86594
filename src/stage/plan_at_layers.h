// A hop's part of a step in which some sequences run only at some of its layers (StepPlan's
// only_layers): first at all of them, then at each such range. Pure functions.
#pragma once

#include "core/step_plan.h"

namespace millrace::stage {

// The plan for a hop of these layers: sequences that do not run at all of them keep their tables
// and have no tokens.
StepPlan PlanAtHop(const StepPlan& plan, LayerRange hop);
// The plan that follows, for some of the layers: the sequences that run at exactly these.
StepPlan PlanAtLayers(const StepPlan& plan, LayerRange hop, LayerRange layers);

}  // namespace millrace::stage
