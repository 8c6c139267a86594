// SimulatedSearch: the search of the server's autopilot for a simulated cluster. Its machines are
// those of a cluster file, as far as they are there. Its answers are a function of its inputs. One
// thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/autopilot/plan_search.h"
#include "apps/plan/inputs.h"
#include "apps/plan/node_costs.h"
#include "apps/simulate/deployment.h"
#include "core/cluster_spec.h"
#include "core/latency_limits.h"
#include "core/plan.h"
#include "plan/flow/flow_from_cluster.h"

namespace millrace::apps {

class SimulatedSearch {
 public:
  // Of `flags`: the cluster, the model, the nodes' profiles and the sizes of the server.
  // `options` have no clock.
  static Result<SimulatedSearch> Load(PlanInputFlags flags, const PlanSearchOptions& options);

  // The workers of `status` are named like the cluster's nodes.
  cluster::SearchAnswer operator()(const cluster::StartSearch& order,
                                   const cluster::ClusterStatus& status) const;
  // The plans for `order` on the nodes of these names, the best first, as if no plan was in force.
  cluster::SearchAnswer PlansFor(const cluster::StartSearch& order,
                                 const std::vector<std::string>& nodes) const;
  // A plan that it found, with the nodes of cluster().
  Plan OnCluster(WorkerPlan found) const;
  // The cluster with a plan, to be simulated. Of `flags`, what is not about the plan counts.
  Result<Deployment> Deploy(Plan plan, DeploymentFlags flags) const;
  const ClusterSpec& cluster() const { return cluster_; }

 private:
  PlanInputFlags flags_;
  PlanSearchOptions options_;
  ClusterSpec cluster_;
  plan::ModelFootprint model_;
  NodeCosts costs_;
};

// What the autopilot would order under the load with which `workload` begins.
cluster::StartSearch OrderAtStart(const sim::WorkloadSpec& workload, uint64_t seed);

}  // namespace millrace::apps
