// The result file of `millrace bench serve`: the JSON of `vllm bench serve`.
#pragma once

#include <string>

#include "apps/commands/bench_serve_flags.h"
#include "base/json.h"
#include "base/status.h"

namespace millrace::apps {

// Writes the file and returns its path. `result` is that of MakeReport.
Result<std::string> SaveResult(const BenchServeFlags& flags, const std::string& model,
                               size_t num_prompts, Json result);

}  // namespace millrace::apps
