// PrepareAutopilot: the autopilot of `millrace simulate`: its options, its search, and the plan
// with which the cluster starts if none is given. One thread, at start.
#pragma once

#include <optional>

#include "apps/autopilot/autopilot_flags.h"
#include "apps/simulate/deployment.h"
#include "base/status.h"
#include "sim/autopilot/autopilot_sim.h"
#include "sim/load/workload_file.h"

namespace millrace::apps {

struct SimulatedPilot {
  sim::AutopilotSimOptions options;
  std::optional<Plan> plan;  // found for the load with which the workload begins, if none is given
};

// REQUIRES: it is not off, and the deployment has a cluster. `seed`: of the workload.
Result<SimulatedPilot> PrepareAutopilot(const AutopilotFlags& flags,
                                        const DeploymentFlags& deployment,
                                        const sim::WorkloadSpec& workload, uint64_t seed);

}  // namespace millrace::apps
