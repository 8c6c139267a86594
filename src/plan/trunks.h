// Trunks: lines that several links share. The flow problem knows links alone, each bounded by its
// trunk; what a plan sends over a trunk in all is found and fitted here. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/cluster_spec.h"
#include "core/plan.h"
#include "plan/planner.h"

namespace millrace::plan {

// What one token weighs on a link.
struct TokenBytes {
  int64_t activation = 0;   // between nodes
  int64_t coordinator = 0;  // to and from the coordinator
};

// One direction of one trunk.
struct TrunkLoad {
  int trunk = 0;
  bool forward = true;
  double bytes_per_s = 0, capacity = 0;
  double ratio() const { return bytes_per_s / capacity; }
};

// The trunk that a link crosses, and which way.
using TrunkWay = std::pair<int, bool>;

// Of every link of the cluster; none for those that have a line of their own.
std::vector<std::optional<TrunkWay>> TrunkWays(const ClusterSpec& cluster);

// Every direction that the plan uses.
std::vector<TrunkLoad> TrunkLoads(const ClusterSpec& cluster, const Plan& plan,
                                  const TokenBytes& bytes);

// `problem` where the links of every trunk that the plan fills carry what the plan sends over them
// and no more: what else the plan could carry, it could not at the same time.
FlowProblem WithTrunksFull(const FlowProblem& problem, const ClusterSpec& cluster, const Plan& plan,
                           const TokenBytes& bytes);

// The flow of `placement` within the trunks, found by narrowing as below.
PlacementFlow FlowWithinTrunks(const FlowProblem& problem, const ClusterSpec& cluster,
                               const TokenBytes& bytes, const Placement& placement);

// PlanByFlow within the trunks: while a trunk carries more than it can, its links are narrowed to
// their shares of it and the plan is searched again from where it stands; a plan that sends no
// activations over trunks is looked for besides. The bound stays that of links alone, which no plan
// within the trunks exceeds.
Result<PlanOutcome> PlanWithinTrunks(const FlowProblem& problem, const ClusterSpec& cluster,
                                     const TokenBytes& bytes, const PlanOptions& options);

}  // namespace millrace::plan
