// CheckPlan: whether a plan can be carried out and delivers what it claims. It uses no code of the
// planners, trusts nothing in the plan and recomputes everything from the problem. Pure functions;
// any thread.
#pragma once

#include <string>
#include <vector>

#include "core/cluster_spec.h"
#include "core/plan.h"
#include "plan/flow/flow_problem.h"

namespace millrace::plan {

struct CheckOptions {
  double tolerance_tokens_per_s = 1e-3;  // allowed difference from recomputed flows
  // Groups of nodes between which KV may move (ClusterSpec::kv_affinity). Empty: all nodes.
  std::vector<std::vector<NodeIndex>> kv_affinity;
  // By node: activations and KV stay in their class (NodeSpec::numeric_class, "" goes with all).
  // Empty: no classes.
  std::vector<std::string> numeric_classes;
  // Means of a request, for plans with roles. Zero: unknown; then prompts are not compared with
  // outputs.
  double prompt_tokens = 0, output_tokens = 0;
};

// Returns every violation as one line; empty if the plan is sound. Checks that the stages of a node
// together fit its memory and its time; that layers are covered on paths that carry flow; that
// every edge joins adjoining ranges, and stages whose roles fit its phase; that the flow of each
// phase is conserved, and all phases together are within the capacity of nodes and links; that
// hand-overs cover every layer, between nodes where KV may move; that the claimed value is the flow
// out of the coordinator and above neither the bound nor a maximum flow computed here; that prefill
// and decode stages come in pairs; and that unused nodes are listed with a reason.
std::vector<std::string> CheckPlan(const FlowProblem& problem, const Plan& plan,
                                   const CheckOptions& options = {});

// The maximum flow of the plan's stages, by augmenting paths (Edmonds and Karp). With roles: prompt
// and output together, as much as the slower phase allows, if `options` has the means of a request.
double RecomputeFlow(const FlowProblem& problem, const Plan& plan,
                     const CheckOptions& options = {});

}  // namespace millrace::plan
