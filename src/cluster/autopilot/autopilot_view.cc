#include "cluster/autopilot/autopilot_view.h"

#include "cluster/autopilot/plan_shape.h"
#include "plan/io/plan_yaml.h"

namespace millrace::cluster {
namespace {

std::vector<std::vector<std::string>> StageWorkers(const ClusterStatus& status) {
  std::vector<std::vector<std::string>> workers;
  for (const StageStatus& stage : status.stages) workers.push_back(stage.workers);
  return workers;
}

// The plan in force as a file that can be applied again; "" if a stage lacks a worker.
std::string PlanText(const ClusterStatus& status) {
  ClusterSpec named;
  named.name = "this cluster";
  Plan plan = status.plan;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    if (status.stages[i].workers.empty()) return "";
    plan.stages[i].nodes.clear();
    for (const std::string& worker : status.stages[i].workers) {
      if (worker.empty()) return "";
      plan.stages[i].nodes.push_back(static_cast<NodeIndex>(named.nodes.size()));
      named.nodes.push_back({.name = worker});
    }
  }
  plan.cluster = named.name;
  plan.unused.clear();
  return plan::WritePlanYaml(plan, named);
}

}  // namespace

AutopilotView ViewOf(const ClusterStatus& status, double unix_s) {
  AutopilotView view{.epoch = status.epoch,
                     .changing = status.changing,
                     .serving = !status.missing,
                     .unix_s = unix_s};
  if (status.stages.size() == status.plan.stages.size()) {
    view.shape = PlanShape(status.plan, StageWorkers(status));
    view.plan_text = PlanText(status);
  }
  for (const WorkerStatus& worker : status.workers) {
    const bool leaving = worker.draining || (worker.notice && worker.notice->hard);
    view.members.push_back({worker.name, worker.usable, leaving});
  }
  if (status.given_up) {
    view.given_up = status.given_up->epoch;
    view.given_up_reason = status.given_up->reason;
  }
  return view;
}

}  // namespace millrace::cluster
