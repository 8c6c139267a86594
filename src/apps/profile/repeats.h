// The repeats of one measured batch, and which of them count. Values; one thread.
#pragma once

#include <vector>

#include "apps/profile/step_rig.h"

namespace millrace::apps {

// The medians of the less disturbed half: a repeat during which another program had the processor
// says nothing of the batch. On a quiet machine all are alike and the choice does not matter.
// REQUIRES: repeats not empty.
StepRig::Timing Summarise(std::vector<StepRig::Timing> repeats);

}  // namespace millrace::apps
