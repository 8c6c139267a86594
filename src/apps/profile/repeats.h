// Summarise: combines the repeats of a measured batch. Pure function; any thread.
#pragma once

#include <vector>

#include "apps/profile/step_rig.h"

namespace millrace::apps {

// Returns the medians of the less disturbed half, so that repeats during which another program used
// the processor are ignored. On a quiet machine all repeats are similar and the choice does not
// matter.
// REQUIRES: repeats not empty.
StepRig::Timing Summarise(std::vector<StepRig::Timing> repeats);

}  // namespace millrace::apps
