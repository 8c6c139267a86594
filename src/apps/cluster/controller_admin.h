// NewControllerAdmin: makes the object through which the routes under /cluster act on a controller.
// The JSON of its answers is that of ClusterView and MachinesView.
#pragma once

#include <memory>
#include <string>

#include "apps/cluster/machines_view.h"
#include "cluster/runtime/controller_host.h"
#include "ops/cluster/kept_plan.h"
#include "serve/observe/cluster_admin.h"

namespace millrace::apps {

// The answers of GET /cluster/status and /cluster/machines. Pure; any thread.
Json StatusJson(const std::string& model, const cluster::ClusterStatus& status);
MachinesView MachinesOf(const cluster::ClusterStatus& status);

// Any thread may call the result while `host` exists. `kept` stores each plan that is applied;
// null: plans are not stored. With `kept`, `host` calls the result, so `host` must be destroyed
// first.
std::unique_ptr<serve::ClusterAdmin> NewControllerAdmin(cluster::ControllerHost& host,
                                                        std::string model,
                                                        std::unique_ptr<ops::KeptPlan> kept);

}  // namespace millrace::apps
