// ControllerAdmin: what operators ask of a controller, as the routes under /cluster want it.
#pragma once

#include <memory>
#include <string>

#include "apps/cluster/kept_plan.h"
#include "cluster/controller_host.h"
#include "serve/cluster_admin.h"

namespace millrace::apps {

// Any thread, while `host` lives. With `kept`, which stores each plan that is applied, `host` calls
// back: it must be destroyed first. null: plans are not stored.
std::unique_ptr<serve::ClusterAdmin> NewControllerAdmin(cluster::ControllerHost& host,
                                                        std::string model,
                                                        std::unique_ptr<KeptPlan> kept);

}  // namespace millrace::apps
