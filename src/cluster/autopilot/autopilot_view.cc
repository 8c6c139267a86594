#include "cluster/autopilot/autopilot_view.h"

#include <map>

#include "cluster/autopilot/plan_shape.h"

namespace millrace::cluster {
namespace {

std::vector<std::vector<std::string>> StageWorkers(const ClusterStatus& status) {
  std::vector<std::vector<std::string>> workers;
  for (const StageStatus& stage : status.stages) workers.push_back(stage.workers);
  return workers;
}

// The plan in force, to be applied again; null if a stage lacks a worker.
std::shared_ptr<const WorkerPlan> PlanInForce(const ClusterStatus& status) {
  WorkerPlan named{.plan = status.plan};
  std::map<std::string_view, NodeIndex> nodes;
  for (size_t i = 0; i < status.stages.size(); ++i) {
    std::vector<NodeIndex>& ranks = named.plan.stages[i].nodes;
    ranks.clear();
    for (const std::string& worker : status.stages[i].workers) {
      if (worker.empty()) return nullptr;
      const auto [node, is_new] = nodes.emplace(worker, static_cast<NodeIndex>(nodes.size()));
      if (is_new) named.workers.push_back(worker);
      ranks.push_back(node->second);
    }
    if (ranks.empty()) return nullptr;
  }
  named.plan.cluster = "this cluster";
  named.plan.unused.clear();
  return std::make_shared<const WorkerPlan>(std::move(named));
}

}  // namespace

AutopilotView ViewOf(const ClusterStatus& status, double unix_s) {
  AutopilotView view{.epoch = status.epoch,
                     .changing = status.changing,
                     .serving = !status.missing,
                     .unix_s = unix_s};
  if (status.stages.size() == status.plan.stages.size()) {
    view.shape = PlanShape(status.plan, StageWorkers(status));
    view.plan = PlanInForce(status);
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
