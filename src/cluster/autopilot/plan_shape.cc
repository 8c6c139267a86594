#include "cluster/autopilot/plan_shape.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/check.h"

namespace millrace::cluster {

std::string PlanShape(const Plan& plan, std::span<const std::vector<std::string>> workers) {
  MR_CHECK(workers.size() == plan.stages.size());
  std::vector<std::string> parts;
  for (size_t i = 0; i < workers.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    std::string part =
        workers[i].empty() ? "nobody" : fmt::format("{}", fmt::join(workers[i], "+"));
    part += fmt::format(" {}-{}", stage.layers.begin, stage.layers.end - 1);
    if (stage.role == StageRole::kPrefill) part += " prefill";
    if (stage.role == StageRole::kDecode) part += " decode";
    parts.push_back(std::move(part));
  }
  std::ranges::sort(parts);
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string PlanShape(const Plan& plan, std::span<const std::string> node_names) {
  std::vector<std::vector<std::string>> workers;
  for (const StagePlan& stage : plan.stages) {
    workers.emplace_back();
    for (const NodeIndex node : stage.nodes) {
      workers.back().push_back(node_names[static_cast<size_t>(node)]);
    }
  }
  return PlanShape(plan, workers);
}

std::vector<std::string> PlanWorkers(const WorkerPlan& plan) {
  std::set<NodeIndex> used;
  for (const StagePlan& stage : plan.plan.stages) {
    used.insert(stage.nodes.begin(), stage.nodes.end());
  }
  std::vector<std::string> workers;
  for (const NodeIndex node : used) workers.push_back(plan.workers[static_cast<size_t>(node)]);
  return workers;
}

}  // namespace millrace::cluster
