// ViewOf: a controller's status as the autopilot sees it. A pure function.
#pragma once

#include "cluster/autopilot/autopilot.h"
#include "cluster/control/controller_status.h"

namespace millrace::cluster {

// `unix_s`: the time of day.
AutopilotView ViewOf(const ClusterStatus& status, double unix_s);

}  // namespace millrace::cluster
