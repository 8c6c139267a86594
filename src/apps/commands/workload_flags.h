// The options that describe a benchmark's workload, for `bench serve` and `bench throughput`.
#pragma once

#include <set>
#include <string>

#include "apps/bench/workload.h"
#include "apps/cli/command.h"

namespace millrace::apps {

// The options write to `options`, which must outlive the command.
void AddWorkloadOptions(Command& command, WorkloadOptions* options);
// `given`: the options on the command line. Those that only another dataset uses are refused.
Status ValidateWorkload(const WorkloadOptions& options, const std::set<std::string>& given);

}  // namespace millrace::apps
