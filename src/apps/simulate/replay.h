// Implements `millrace simulate --replay`: compares a step log of `millrace serve` with the same
// scheduler on the virtual clock. One thread.
#pragma once

#include <string>

#include "base/status.h"

namespace millrace::apps {

// Prints what was compared. kFailedPrecondition with the first decision that differs.
Status RunReplay(const std::string& log_file, bool json);

}  // namespace millrace::apps
