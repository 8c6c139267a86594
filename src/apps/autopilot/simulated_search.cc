#include "apps/autopilot/simulated_search.h"

#include <algorithm>
#include <set>
#include <utility>

#include "plan/flow/part_of_cluster.h"

namespace millrace::apps {
namespace {

// What a simulated worker can serve: one stage with all devices of its node.
bool FitsWorkers(const Plan& plan, const ClusterSpec& cluster) {
  std::set<NodeIndex> used;
  return std::ranges::all_of(plan.stages, [&](const StagePlan& stage) {
    const NodeIndex node = stage.nodes.front();
    return stage.nodes.size() == 1 && used.insert(node).second &&
           stage.tensor_parallel == cluster.nodes[static_cast<size_t>(node)].device_count;
  });
}

}  // namespace

Result<SimulatedSearch> SimulatedSearch::Load(PlanInputFlags flags,
                                              const PlanSearchOptions& options) {
  SimulatedSearch search;
  MR_ASSIGN_OR_RETURN(search.cluster_, LoadCluster(flags));
  MR_ASSIGN_OR_RETURN(search.model_, LoadFootprint(flags.model));
  MR_ASSIGN_OR_RETURN(search.costs_,
                      NodeCosts::Load(flags.node_profiles, search.cluster_, search.model_.spec));
  search.flags_ = std::move(flags);
  search.options_ = options;
  return search;
}

cluster::SearchAnswer SimulatedSearch::operator()(const cluster::StartSearch& order,
                                                  const cluster::ClusterStatus& status) const {
  PlanSearch search(options_);
  cluster::SearchAnswer answer = search(order, status, [&](sim::WorkloadSpec load) {
    ClusterSpec here = plan::PartOfCluster(
        cluster_, [&](const NodeSpec& node) { return MayGetLayers(status, node.name); });
    return MakePlanInputs(flags_, std::move(here), model_, costs_, std::move(load));
  });
  std::erase_if(answer.found, [&](const cluster::PlanForecast& found) {
    return found.plan && !FitsWorkers(OnCluster(*found.plan), cluster_);  // null: that in force
  });
  if (answer.status.ok() && answer.found.empty()) {
    answer.status = FailedPrecondition("every plan found has several stages on one node");
  }
  return answer;
}

cluster::SearchAnswer SimulatedSearch::PlansFor(const cluster::StartSearch& order,
                                                const std::vector<std::string>& nodes) const {
  cluster::ClusterStatus status;
  for (const std::string& name : nodes) status.workers.push_back({.name = name});
  return (*this)(order, status);
}

Plan SimulatedSearch::OnCluster(WorkerPlan found) const {
  const auto in_cluster = [&](NodeIndex node) {
    const auto at = std::ranges::find(cluster_.nodes, found.workers[static_cast<size_t>(node)],
                                      &NodeSpec::name);
    return static_cast<NodeIndex>(at - cluster_.nodes.begin());
  };
  for (StagePlan& stage : found.plan.stages) {
    for (NodeIndex& node : stage.nodes) node = in_cluster(node);
  }
  found.plan.cluster = cluster_.name;
  found.plan.unused.clear();
  return std::move(found.plan);
}

Result<Deployment> SimulatedSearch::Deploy(Plan plan, DeploymentFlags flags) const {
  flags.engine = WithServerSizes(PlanEngine(flags.engine), cluster_.server);
  return DeployPlan(std::move(plan), cluster_, model_.spec, costs_, flags);
}

cluster::StartSearch OrderAtStart(const sim::WorkloadSpec& workload, uint64_t seed) {
  const cluster::AutopilotOptions options;
  cluster::StartSearch order;
  const auto requests = workload.Make(seed);
  double prompts = 0, outputs = 0, last_s = 0;
  while (order.lengths.size() < cluster::AutopilotOptions::kLengthsMax) {
    const auto request = requests->Next();
    if (!request) break;
    order.lengths.push_back({request->prompt_tokens, request->output_tokens});
    prompts += request->prompt_tokens;
    outputs += request->output_tokens;
    last_s = (request->arrival - Time{}).seconds();
  }
  const auto count = static_cast<double>(std::max<size_t>(1, order.lengths.size()));
  order.load = {.requests_per_s = last_s > 0 ? count / last_s : workload.MeanRate().value_or(1),
                .prompt_tokens = prompts / count,
                .output_tokens = outputs / count,
                .variation = workload.arrivals == sim::ArrivalKind::kGamma ? workload.cv : 1,
                .requests = order.lengths.size()};
  order.planned_requests_per_s = order.load.requests_per_s * options.headroom;
  return order;
}

}  // namespace millrace::apps
