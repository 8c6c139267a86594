// The options that describe a benchmark's workload, for `bench serve` and `bench throughput`.
#pragma once

#include "apps/bench/workload.h"
#include "apps/cli/command.h"

namespace millrace::apps {

// Bound to `options`, which outlives the command.
void AddWorkloadOptions(Command& command, WorkloadOptions* options);
Status ValidateWorkload(const WorkloadOptions& options);

}  // namespace millrace::apps
