// CellAdmin: what operators ask of a cell, as the routes under /cluster want it.
#pragma once

#include <memory>
#include <string>

#include "apps/cluster/kept_plan.h"
#include "cluster/cell.h"
#include "serve/cluster_admin.h"

namespace millrace::apps {

// `cell` outlives it. Any thread. `kept`: takes each plan that is applied; null: nobody does.
std::unique_ptr<serve::ClusterAdmin> NewCellAdmin(cluster::Cell& cell, std::string model,
                                                  std::unique_ptr<KeptPlan> kept);

}  // namespace millrace::apps
