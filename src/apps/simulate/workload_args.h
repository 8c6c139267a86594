// The workload of `millrace simulate`: a file, or flags for the usual case, or a file with some of
// its values replaced by flags. One thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "base/status.h"
#include "sim/workload_file.h"

namespace millrace::apps {

struct WorkloadArgs {
  std::string file;
  std::vector<double> rates;  // the first one's, or each in turn
  std::optional<int> input_len, output_len;
  std::optional<int64_t> requests;
  std::optional<double> cv;
  std::vector<std::string> slo;
  std::optional<double> attainment_percent;
};

// The options bound to `args`, which outlive the command.
void AddWorkloadArgs(Command& command, WorkloadArgs* args);
Status ValidateWorkloadArgs(const WorkloadArgs& args);
// A YAML description, or a trace on its own, told apart by the name; then what the flags replace.
Result<sim::WorkloadSpec> LoadWorkloadArgs(const WorkloadArgs& args);

}  // namespace millrace::apps
