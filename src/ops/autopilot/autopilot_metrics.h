// The autopilot's families of /metrics. A pure function.
#pragma once

#include <vector>

#include "ops/autopilot/autopilot_host.h"
#include "serve/observe/cluster_admin.h"

namespace millrace::ops {

void AddAutopilotMetrics(const AutopilotStatus& status, std::vector<serve::ClusterMetric>& metrics);

}  // namespace millrace::ops
