// What every measurement of a profile has in common: limits that fit in the memory, and the terms
// of the fit. Pure functions; any thread.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "core/model_spec.h"
#include "cost/step_model.h"
#include "ops/profile/grid.h"

namespace millrace::ops {

inline constexpr int kProfileBlockSize = 16;

// The limits that this model and this much free memory allow. kResourceExhausted: none.
Result<ProfileLimits> FitLimits(ProfileLimits limits, const ModelSpec& spec, int64_t memory);

// Where the time per token changes: the token counts at which products stop being bound by the
// weights.
cost::StepKnots ProfileKnots();

}  // namespace millrace::ops
