#include "apps/autopilot/simulated_pilot.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "apps/autopilot/simulated_search.h"
#include "base/file.h"
#include "plan/io/plan_yaml.h"
#include "plan/io/yaml_reader.h"

namespace millrace::apps {
namespace {

// --model, or that of the plan.
Result<std::string> ModelOf(const DeploymentFlags& deployment) {
  if (!deployment.engine.model.empty()) return deployment.engine.model;
  if (deployment.plan.empty()) {
    return InvalidArgument(
        "--model is missing, such as llama-70b: there is no --plan that names it");
  }
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(deployment.plan, plan::kYamlBytesMax));
  MR_ASSIGN_OR_RETURN(const WorkerPlan plan, plan::ParseWorkerPlan(text, deployment.plan));
  return plan.plan.model;
}

// The nodes that are there at time 0.
Result<std::vector<std::string>> FirstNodes(const DeploymentFlags& deployment,
                                            const ClusterSpec& cluster) {
  std::vector<std::string> names;
  for (const NodeSpec& node : cluster.nodes) names.push_back(node.name);
  if (deployment.membership.availability.empty()) return names;
  MR_ASSIGN_OR_RETURN(const Membership membership,
                      LoadMembership(deployment.membership, static_cast<int>(names.size())));
  std::vector<std::string> first;
  for (const sim::MembershipChange& change : membership.changes) {
    if (change.at > Time{}) break;
    if (change.what != sim::MembershipChange::What::kCame) continue;
    first.push_back(names[static_cast<size_t>(change.instance)]);
  }
  if (!first.empty()) return first;
  return InvalidArgument(
      "no machine of --availability is there at time 0, so no plan can be found to start with; "
      "give "
      "one with --plan");
}

}  // namespace

Result<SimulatedPilot> PrepareAutopilot(const AutopilotFlags& flags,
                                        const DeploymentFlags& deployment,
                                        const sim::WorkloadSpec& workload, uint64_t seed) {
  PlanInputFlags inputs;
  inputs.cluster = deployment.cluster;
  inputs.node_profiles = deployment.node_profiles;
  inputs.engine = PlanEngine(deployment.engine);
  MR_ASSIGN_OR_RETURN(inputs.model, ModelOf(deployment));
  MR_ASSIGN_OR_RETURN(SimulatedSearch loaded,
                      SimulatedSearch::Load(std::move(inputs), {.limits = workload.limits}));
  const auto search = std::make_shared<const SimulatedSearch>(std::move(loaded));
  SimulatedPilot pilot;
  pilot.options.autopilot = AutopilotOptionsOf(flags, workload.limits);
  pilot.options.search = [search](const auto& order, const auto& status) {
    return (*search)(order, status);
  };
  if (!deployment.plan.empty()) return pilot;
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> nodes,
                      FirstNodes(deployment, search->cluster()));
  const cluster::SearchAnswer found = search->PlansFor(OrderAtStart(workload, seed), nodes);
  if (!found.status.ok()) return found.status.WithContext("no plan to start with");
  pilot.plan = search->OnCluster(*found.found.front().plan);
  return pilot;
}

}  // namespace millrace::apps
