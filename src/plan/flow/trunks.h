// Trunks: lines that several links share. The flow problem has links only, each bounded by its
// trunk. This computes a plan's total load on each trunk and makes the plan fit. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/cluster_spec.h"
#include "core/plan.h"
#include "plan/flow/planner.h"

namespace millrace::plan {

// Bytes of one token on a link.
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

// The trunk that a link crosses, and in which direction.
using TrunkDirection = std::pair<int, bool>;

// By link of the cluster; none for links with their own line.
std::vector<std::optional<TrunkDirection>> TrunkDirections(const ClusterSpec& cluster);

// Every direction that the plan uses.
std::vector<TrunkLoad> TrunkLoads(const ClusterSpec& cluster, const Plan& plan,
                                  const TokenBytes& bytes);

// `problem` with the links of every full trunk limited to what the plan sends over them.
// Alternatives over other links of the same trunk would not be additional capacity.
FlowProblem WithTrunksFull(const FlowProblem& problem, const ClusterSpec& cluster, const Plan& plan,
                           const TokenBytes& bytes);

// The flow of `placement` within the trunks, by narrowing as below.
PlacementFlow FlowWithinTrunks(const FlowProblem& problem, const ClusterSpec& cluster,
                               const TokenBytes& bytes, const Placement& placement);

// PlanByFlow within the trunks. While a trunk is overloaded, its links are narrowed to their shares
// of it and the search continues from the current plan. A plan that sends no activations over
// trunks is also tried. The bound remains that of links alone, which no plan within the trunks
// exceeds.
Result<PlanOutcome> PlanWithinTrunks(const FlowProblem& problem, const ClusterSpec& cluster,
                                     const TokenBytes& bytes, const PlanOptions& options);

}  // namespace millrace::plan
