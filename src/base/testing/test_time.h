// Points in time on a test's own clock.
#pragma once

#include "base/clock.h"

namespace millrace {

inline Time At(double seconds) { return Time{} + Duration::Seconds(seconds); }

}  // namespace millrace
