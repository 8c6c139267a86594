// PartOfCluster: a cluster without some of its nodes. A pure function; any thread.
#pragma once

#include <functional>

#include "core/cluster_spec.h"

namespace millrace::plan {

// The nodes for which `keep` is true, in their order, with the links and KV groups between them.
// Trunks stay as they are.
ClusterSpec PartOfCluster(const ClusterSpec& cluster,
                          const std::function<bool(const NodeSpec&)>& keep);

}  // namespace millrace::plan
