// ClusterMetrics: a controller's status as the families of /metrics. Pure; any thread.
#pragma once

#include <vector>

#include "cluster/control/controller_status.h"
#include "serve/observe/cluster_admin.h"

namespace millrace::apps {

// Stages of a plan beyond this number have no series.
inline constexpr size_t kStageSeriesMax = 1024;

std::vector<serve::ClusterMetric> ClusterMetrics(const cluster::ClusterStatus& status);

}  // namespace millrace::apps
