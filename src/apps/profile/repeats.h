// Selects which repeats of a measured batch count. Values; one thread.
#pragma once

#include <vector>

#include "apps/profile/step_rig.h"

namespace millrace::apps {

// The medians of the less disturbed half. A repeat during which another program used the processor
// does not count. On a quiet machine all repeats are alike and the choice does not matter.
// REQUIRES: repeats not empty.
StepRig::Timing Summarise(std::vector<StepRig::Timing> repeats);

}  // namespace millrace::apps
