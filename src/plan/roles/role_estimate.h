// What placements with roles deliver, by a short queueing model (DistServe, OSDI'24, section 3):
// prompts queue at the prefill pool, their KV moves over links, cards and trunks, and outputs are
// decoded in batches that KV memory and the TPOT limit bound. The limits hold for nine requests in
// ten, as in the simulator that makes the final choice. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "plan/roles/pool_flow.h"
#include "plan/roles/role_problem.h"

namespace millrace::plan {

// KV from one node to another, for the layers that both hold.
struct HandOver {
  int from = 0, to = 0;
  double share = 0;  // of the unit's requests
};

// Pools that serve requests together: prefill and decode of one domain, or the nodes of both roles
// (then `prefill` is empty).
struct RoleUnit {
  PoolFlow prefill, decode;
  std::vector<HandOver> hand_overs;
  GoodputEstimate estimate;
  double capacity_requests_per_s = 0;  // without latency limits
};

struct RoleEstimate {
  std::vector<RoleUnit> units;  // those that carry something
  double requests_per_s = 0;    // of all units
  std::string limit;            // of the unit with the highest rate
};

// The highest rate at which nodes that do both keep the limits, along these edges.
GoodputEstimate EstimateTogether(const RoleProblem& problem, const Placement& placement,
                                 const std::vector<FlowEdge>& edges);
// The same along the maximum flow; with losable nodes, after the worst loss.
GoodputEstimate EstimateTogether(const RoleProblem& problem, const Placement& placement);

// The highest rate at which the pool alone keeps its limit: TTFT for prefill, TPOT for decode.
double PrefillAlone(const RoleProblem& problem, const Placement& pool);
double DecodeAlone(const RoleProblem& problem, const Placement& pool);

// Both pools together, with the KV between them.
RoleUnit EstimateUnit(const RoleProblem& problem, const Placement& prefill,
                      const Placement& decode);

// Every domain that has both pools, and the nodes that do both. With losable nodes, rate and limit
// are those after the worst loss, and the units those before it.
RoleEstimate EstimateRoles(const RoleProblem& problem, const RolePlacement& placement);

// The estimate of the unit that answers most, at the rate of all.
GoodputEstimate SummaryOf(const RoleEstimate& roles);

// "KV of n1 after the loss of n0". `limit`: of what is left; empty: nothing is.
std::string LimitAfterLoss(const GoodputProblem& problem, int node, const std::string& limit);

}  // namespace millrace::plan
