// WorkerPlan: a plan for a running cluster. Its nodes are workers, by the names under which they
// joined. Pure data; any thread.
#pragma once

#include <string>
#include <vector>

#include "core/plan.h"

namespace millrace {

struct WorkerPlan {
  Plan plan;
  std::vector<std::string> workers;      // by the plan's node index
  std::string cluster_fingerprint = {};  // of the cluster that it was made for; "": not known
};

}  // namespace millrace
