// The workload of `millrace simulate`: a file, flags for the common case, or a file with some
// values replaced by flags. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "base/status.h"
#include "sim/load/workload_file.h"

namespace millrace::apps {

struct WorkloadArgs {
  std::string file;
  std::vector<double> rates;  // usually one; a list runs each in turn
  std::optional<int> input_len, output_len;
  std::optional<int64_t> requests;
  std::optional<double> cv;
  LatencyLimits slo;
};

// Options bound to `args`, which must outlive the command.
void AddWorkloadArgs(Command& command, WorkloadArgs* args);
Status ValidateWorkloadArgs(const WorkloadArgs& args);
// Loads a YAML description or a trace, depending on the file name, and applies the flags.
Result<sim::WorkloadSpec> LoadWorkloadArgs(const WorkloadArgs& args);

}  // namespace millrace::apps
