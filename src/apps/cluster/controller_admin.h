// NewControllerAdmin: makes the object through which the routes under /cluster act on a controller.
#pragma once

#include <memory>
#include <string>

#include "cluster/runtime/controller_host.h"
#include "ops/cluster/kept_plan.h"
#include "serve/observe/cluster_admin.h"

namespace millrace::apps {

// Any thread may call the result while `host` exists. `kept` stores each plan that is applied;
// null: plans are not stored. With `kept`, `host` calls the result, so `host` must be destroyed
// first.
std::unique_ptr<serve::ClusterAdmin> NewControllerAdmin(cluster::ControllerHost& host,
                                                        std::string model,
                                                        std::unique_ptr<ops::KeptPlan> kept);

}  // namespace millrace::apps
