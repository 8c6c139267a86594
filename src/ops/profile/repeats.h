// Summarise, InTheLongRun: combine the repeats of measured batches. Pure functions; any thread.
#pragma once

#include <vector>

#include "ops/profile/step_rig.h"

namespace millrace::ops {

// Returns the medians of the less disturbed half, so that repeats during which another program used
// the processor are ignored. On a quiet machine all repeats are similar and the choice does not
// matter.
// REQUIRES: repeats not empty.
StepRig::Timing Summarise(std::vector<StepRig::Timing> repeats);

// The times of batches on a processor that this process has for a part of the time only, because of
// a quota or of other programs. An interruption hits a long step every time and a short one rarely,
// so the time of a step says little about how often such steps can run. Each batch gets the
// processor time of its step, stretched by the time that all steps took for a second of it.
// REQUIRES: no batch without repeats.
std::vector<StepRig::Timing> InTheLongRun(const std::vector<std::vector<StepRig::Timing>>& batches);

}  // namespace millrace::ops
