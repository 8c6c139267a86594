// CellAdmin: what operators ask of a cell, as the routes under /cluster want it.
#pragma once

#include <memory>
#include <string>

#include "cluster/cell.h"
#include "serve/cluster_admin.h"

namespace millrace::apps {

// `cell` outlives it. Any thread.
std::unique_ptr<serve::ClusterAdmin> NewCellAdmin(cluster::Cell& cell, std::string model);

}  // namespace millrace::apps
