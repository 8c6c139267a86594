#include "tests/fault/lab_autopilot.h"

#include <algorithm>
#include <utility>

#include "cluster/autopilot/plan_shape.h"

namespace millrace::sim::fault {
namespace {

// A schedule lasts a few seconds, so everything is faster than in a server.
cluster::AutopilotOptions Hasty() {
  cluster::AutopilotOptions o;
  o.mode = cluster::AutopilotMode::kAct;
  o.window = Duration::Millis(125);
  o.reference_windows = 2;
  o.confirm_windows = 1;
  o.requests_min = 1;
  o.settle = Duration::Millis(100);
  o.gain_min = 0;
  o.stall_guess = Duration::Millis(1);
  o.dwell = Duration::Millis(300);
  o.dwell_max = Duration::Millis(600);
  o.verify = Duration::Millis(400);
  o.margin = 0.05;
  return o;
}

}  // namespace

void LabAutopilot::Start() {
  std::vector<cluster::Decision> earlier;
  if (pilot_) {
    const auto& decisions = pilot_->autopilot().decisions();
    earlier.assign(decisions.begin(), decisions.end());
  }
  pilot_.emplace(
      Hasty(), std::move(earlier),
      VirtualAutopilotCalls{
          .search = [this](const auto&,
                           const cluster::ClusterStatus& status) { return Search(status); },
          .apply = [this](WorkerPlan plan) { return Apply(std::move(plan)); }});
}

Result<int64_t> LabAutopilot::Apply(WorkerPlan plan) {
  ++changes_;
  return apply_(std::move(plan));
}

cluster::SearchAnswer LabAutopilot::Search(const cluster::ClusterStatus& status) {
  cluster::SearchAnswer answer;
  answer.seconds = static_cast<double>(rng_.Between(0, 400)) / 1000;
  if (rng_.Between(0, 5) == 0) {
    answer.status = Unavailable("the search was unlucky");
    return answer;
  }
  ClusterSpec workers{.name = "the lab"};
  for (const cluster::WorkerStatus& worker : status.workers) {
    const bool leaves = worker.draining || (worker.notice && worker.notice->hard);
    if (worker.usable && !leaves) workers.nodes.push_back({.name = worker.name});
  }
  const auto rate = [this](int most) { return static_cast<double>(rng_.Between(0, most)); };
  if (rng_.Between(0, 1) > 0) answer.current = cluster::PlanForecast{.requests_per_s = rate(2)};
  std::vector<std::string> names;
  for (const NodeSpec& node : workers.nodes) names.push_back(node.name);
  for (int64_t n = names.empty() ? 0 : rng_.Between(0, 4); n > 0; --n) {
    Plan plan = RandomPlan(rng_.Next(), scenario_, static_cast<int>(std::ssize(names)));
    plan.cluster = workers.name;
    NodeIndex next = 0;
    for (StagePlan& stage : plan.stages) {
      if (stage.nodes.empty()) stage.nodes = {next++};
    }
    answer.found.push_back({.shape = cluster::PlanShape(plan, names),
                            .plan = std::make_shared<const WorkerPlan>(WorkerPlan{plan, names}),
                            .method = "chance",
                            .requests_per_s = rate(8)});
  }
  std::ranges::stable_sort(answer.found, std::ranges::greater(),
                           &cluster::PlanForecast::requests_per_s);
  return answer;
}

}  // namespace millrace::sim::fault
