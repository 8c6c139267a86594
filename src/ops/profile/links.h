// Measures how fast this machine copies memory and transfers messages over loopback. Each call
// blocks for well under a second; any thread, one at a time.
#pragma once

#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cost/link_model.h"

namespace millrace::ops {

// Bytes copied per second by one thread, the median of `repeats` copies of 32 MiB.
double MeasureMemoryCopy(int repeats, const Clock& clock);

// One direction over TCP on 127.0.0.1, for sizes of 64 bytes to 4 MiB; each the median of
// `repeats`. The reply is an acknowledgement of one byte; its time is subtracted. kUnavailable if
// there is no loopback.
Result<std::vector<cost::TransferSample>> MeasureLoopback(int repeats, const Clock& clock);

}  // namespace millrace::ops
