// The fleet as JSON, for GET /cluster/status and `millrace fleet`, and as text and metrics. Pure
// functions.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "cluster/fleet/fleet_spec.h"
#include "cluster/fleet/fleet_types.h"
#include "serve/observe/cluster_admin.h"

namespace millrace::apps {

// "fleet" of the status (docs/http-api.md).
Json FleetJson(const cluster::FleetSpec& spec, const cluster::FleetStatus& status);

// For people: a table of the kinds, the cost, and the last events. A field that is missing or of
// another type is empty.
std::string FleetText(const Json& fleet);

void AddFleetMetrics(const cluster::FleetSpec& spec, const cluster::FleetStatus& status,
                     std::vector<serve::ClusterMetric>& metrics);

}  // namespace millrace::apps
