// The result file of `millrace bench serve`: the JSON of `vllm bench serve`.
#pragma once

#include <ctime>
#include <string>

#include "apps/commands/bench_serve_flags.h"
#include "base/json.h"
#include "base/status.h"

namespace millrace::apps {

// What a file says before the numbers.
Json ResultHeader(const BenchServeFlags& flags, const std::string& model, size_t num_prompts,
                  std::time_t now);
// When a rising rate reached each whole number of requests per second.
inline constexpr char kRateChangesKey[] = "rps_change_events";
Json RateChangeEvents(const RampUp& ramp, const std::vector<BenchRequest>& requests,
                      double started_s);
// Writes the file, or appends a line to it, and returns its path. `result` is that of MakeReport.
Result<std::string> SaveResult(const BenchServeFlags& flags, const std::string& model,
                               const Json& header, Json result);

// kInvalidArgument for a key of --metadata that the file has itself.
Status CheckMetadata(const BenchServeFlags& flags);

}  // namespace millrace::apps
