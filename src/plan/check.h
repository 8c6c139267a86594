// CheckPlan: whether a plan can be carried out and is worth what it says, found without any code
// of the planners. It trusts nothing in the plan and recomputes everything from the problem. Pure
// functions; any thread.
#pragma once

#include <string>
#include <vector>

#include "core/cluster_spec.h"
#include "core/plan.h"
#include "plan/flow_problem.h"

namespace millrace::plan {

struct CheckOptions {
  double tolerance_tokens_per_s = 1e-3;  // flows may differ by so much from what was recomputed
  // Groups of nodes between which KV may move (ClusterSpec::kv_affinity). Empty: between all.
  std::vector<std::vector<NodeIndex>> kv_affinity;
};

// Every violation as one line; empty when the plan is sound. Checks: stages name each node once and
// within its memory; layers are covered on paths that carry flow; every edge joins ranges that
// follow each other; flow is conserved and within what nodes and links carry; the claimed value is
// the flow out of the coordinator, not above the bound nor above a maximum flow computed here;
// prefill and decode stages come in pairs whose KV may move; unused nodes are named with a reason.
std::vector<std::string> CheckPlan(const FlowProblem& problem, const Plan& plan,
                                   const CheckOptions& options = {});

// The maximum flow of the plan's stages by augmenting paths (Edmonds and Karp).
double RecomputeFlow(const FlowProblem& problem, const Plan& plan);

}  // namespace millrace::plan
