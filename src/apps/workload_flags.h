// The options that describe a benchmark's workload, for `bench serve` and `bench throughput`.
#pragma once

#include <set>
#include <string>

#include "apps/bench/workload.h"
#include "apps/cli/command.h"

namespace millrace::apps {

// Bound to `options`, which outlives the command.
void AddWorkloadOptions(Command& command, WorkloadOptions* options);
// `given`: the options of the command line. What another dataset reads is refused.
Status ValidateWorkload(const WorkloadOptions& options, const std::set<std::string>& given);

}  // namespace millrace::apps
