// Converts a result of the DistServe search to a Plan for a cluster of alike nodes: which devices
// of which node run which stage of which instance, and the edges of every phase. Pure; any thread.
#pragma once

#include "base/status.h"
#include "core/plan.h"
#include "plan/distserve/distserve.h"
#include "plan/flow/flow_problem.h"

namespace millrace::plan {

// `problem` has the cluster's nodes, which are alike, with the rates of each phase, and links
// between all of them. Instances share the requests evenly; KV stays in its unit if the unit keeps
// it inside nodes. Flows are those of the candidate's rate, as far as nodes and links carry them.
// kFailedPrecondition: its stages do not fit the nodes, whole tensor-parallel groups in each.
Result<Plan> PlanOfUnits(const FlowProblem& problem, const DistServeCandidate& candidate,
                         double prompt_tokens, double output_tokens);

}  // namespace millrace::plan
