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
  std::optional<int64_t> fetched_bytes;  // about; nullopt when nobody holds one of the layers now
};

struct PlanDiff {
  std::vector<WorkerChange> changes;  // by name; those that stay as they are as well
  std::vector<LayerRange> uncovered;  // layers of the model that the new plan leaves out
  int num_layers = 0;

  bool empty() const;
};

// A worker whose tensor-parallel rank or degree changes gets all its layers anew.
PlanDiff DiffPlans(const ClusterView& now, const plan::WorkerPlan& then);
std::string FormatPlanDiff(const PlanDiff& diff);

}  // namespace millrace::apps
