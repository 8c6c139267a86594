// plan.yaml: a Plan as a file that people read and other commands accept; the format is in
// docs/formats/plan.md. A plan that names the cluster it was made for is rejected for any other.
// Untrusted text: an error is one line, "NAME:LINE:COLUMN: ...". Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "core/cluster_spec.h"
#include "core/worker_plan.h"

namespace millrace::plan {

// Depends on the machines and links, but not on prices, spot or the cluster's name.
uint64_t ClusterFingerprint(const ClusterSpec& cluster);

// The same plan with the names of the cluster's nodes, which are those of its workers.
WorkerPlan OnWorkers(Plan plan, const ClusterSpec& cluster);

// REQUIRES: the plan's nodes are in `cluster`, and its edges join its own stages.
std::string WritePlanYaml(const Plan& plan, const ClusterSpec& cluster);
std::string WritePlanYaml(const WorkerPlan& plan);

// Reads what WritePlanYaml wrote, exactly to the last bit. The result names existing nodes and
// stages, and its ranges lie within the model. CheckPlan judges whether the plan is sound.
// `cluster`, `cluster_fingerprint`, `flow`, `bound` and `unused` are optional, and so is `edges` if
// each stage's layers begin where another's end.
Result<Plan> ParsePlanYaml(std::string_view text, std::string_view name,
                           const ClusterSpec& cluster);

// Reads the same file without knowing the cluster.
Result<WorkerPlan> ParseWorkerPlan(std::string_view text, std::string_view name);

// "both", "prefill", "decode".
std::string_view RoleName(StageRole role);
std::string_view PhaseName(EdgePhase phase);

}  // namespace millrace::plan
