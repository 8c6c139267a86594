// CheckPlan: whether a plan can be carried out and delivers what it claims. It uses no code of the
// planners, trusts nothing in the plan and recomputes everything from the problem. Pure functions;
// any thread.
#pragma once

#include <string>
#include <vector>

#include "core/cluster_spec.h"
#include "core/plan.h"
#include "plan/flow_problem.h"

namespace millrace::plan {

struct CheckOptions {
  double tolerance_tokens_per_s = 1e-3;  // allowed difference from recomputed flows
  // Groups of nodes between which KV may move (ClusterSpec::kv_affinity). Empty: all nodes.
  std::vector<std::vector<NodeIndex>> kv_affinity;
};

// Returns every violation as one line; empty if the plan is sound. Checks that stages name each
// node once and fit its memory; that layers are covered on paths that carry flow; that every edge
// joins adjoining ranges; that flow is conserved and within the capacity of nodes and links; that
// the claimed value is the flow out of the coordinator and above neither the bound nor a maximum
// flow computed here; that prefill and decode stages come in pairs between which KV may move; and
// that unused nodes are listed with a reason.
std::vector<std::string> CheckPlan(const FlowProblem& problem, const Plan& plan,
                                   const CheckOptions& options = {});

// The maximum flow of the plan's stages, by augmenting paths (Edmonds and Karp).
double RecomputeFlow(const FlowProblem& problem, const Plan& plan);

}  // namespace millrace::plan
