// InputsOfMachines: the planner's inputs for the autopilot of a running cluster, from what its
// workers say of themselves. A pure function of its arguments and the model's folder; any thread.
#pragma once

#include <string>

#include "apps/plan/inputs.h"
#include "base/json.h"
#include "cluster/control/controller_status.h"

namespace millrace::apps {

// `model`: its folder. `machines`: the answer of GET /cluster/machines. kFailedPrecondition: no
// worker could get layers.
Result<PlanInputs> InputsOfMachines(const std::string& model, const cluster::ClusterStatus& status,
                                    const Json& machines, sim::WorkloadSpec load);

}  // namespace millrace::apps
