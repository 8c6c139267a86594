// The option --slo of every command that has limits on latency: "--slo ttft=2s tpot=80ms
// attainment=90%". Pure functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/option.h"
#include "base/status.h"
#include "core/latency_limits.h"

namespace millrace::apps {

inline constexpr char kSloHelp[] =
    "Limits per request, such as ttft=2s tpot=80ms attainment=90%: a request keeps them if its own "
    "TTFT and its own mean TPOT are within them; attainment is the share of requests that must "
    "[default: 90%]";

Result<LatencyLimits> ParseSlo(const std::vector<std::string>& texts);
Option SloOption(LatencyLimits* target);

// `given`, completed by the limits of a workload file. kInvalidArgument if there is only an
// attainment.
Result<LatencyLimits> CompleteSlo(const LatencyLimits& given, const LatencyLimits& from_file);

}  // namespace millrace::apps
