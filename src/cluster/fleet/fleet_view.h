// FleetViewOf: a controller's status as the fleet sees it. A pure function.
#pragma once

#include "cluster/control/controller_status.h"
#include "cluster/fleet/fleet_types.h"

namespace millrace::cluster {

// `unix_s`: the time of day.
FleetView FleetViewOf(const ClusterStatus& status, double unix_s);

}  // namespace millrace::cluster
