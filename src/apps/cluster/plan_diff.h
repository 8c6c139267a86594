// What a new plan would change in a running cluster: which layers each worker would have to get,
// which it would drop, and about how many bytes of weights that is. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/cluster/cluster_view.h"
#include "core/plan.h"
#include "plan/io/plan_yaml.h"

namespace millrace::apps {

struct WorkerChange {
  std::string worker;
  bool present = false;  // has joined
  std::vector<LayerRange> now, then, fetched, dropped;
  std::optional<int64_t> fetched_bytes;  // approximate; nullopt if a layer is on no worker
};

struct PlanDiff {
  std::vector<WorkerChange> changes;  // by name, including unchanged workers
  std::vector<LayerRange> uncovered;  // layers of the model that the new plan leaves out
  int num_layers = 0;

  bool empty() const;
};

// A worker whose tensor-parallel rank or degree changes fetches all its layers again.
PlanDiff DiffPlans(const ClusterView& now, const WorkerPlan& then);
std::string FormatPlanDiff(const PlanDiff& diff);

}  // namespace millrace::apps
