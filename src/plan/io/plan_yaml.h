// plan.yaml: a Plan as a file that people read and other commands take; format in
// docs/formats/plan.md. A plan names the cluster it was made for and is refused for another one.
// Untrusted text: an error is one line, "NAME:LINE:COLUMN: ...". Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/cluster_spec.h"
#include "core/plan.h"

namespace millrace::plan {

// Of the machines and links; prices, spot and the cluster's name do not change it.
uint64_t ClusterFingerprint(const ClusterSpec& cluster);

// REQUIRES: the plan's nodes and edges are those of `cluster` and of its own stages.
std::string WritePlanYaml(const Plan& plan, const ClusterSpec& cluster);

// Reads what WritePlanYaml wrote, to the last bit. The result names existing nodes and stages and
// its ranges lie within the model; whether the plan is any good is CheckPlan's affair.
Result<Plan> ParsePlanYaml(std::string_view text, std::string_view name,
                           const ClusterSpec& cluster);

// A plan for a running cluster: its nodes are workers, by the names under which they joined.
struct WorkerPlan {
  Plan plan;
  std::vector<std::string> workers;  // by the plan's node index
};
// Reads the same file without knowing the cluster, so that it can be short: `cluster`,
// `cluster_fingerprint`, `flow`, `bound` and `unused` may be missing, and `edges` too when layers
// simply go on where others end.
Result<WorkerPlan> ParseWorkerPlan(std::string_view text, std::string_view name);

// "both", "prefill", "decode".
std::string_view RoleName(StageRole role);

}  // namespace millrace::plan
