// A cluster with one more machine of a kind that it has. Pure functions; any thread.
#pragma once

#include <vector>

#include "core/cluster_spec.h"
#include "core/plan.h"
#include "plan/estimate/flow_goodput.h"
#include "plan/flow/flow_problem.h"

namespace millrace::apps {

// `problem` with a copy of `node` and its links, as its last node. The node and its copy are linked
// as fast as the node's fastest link to another of its kind, or else to any node.
plan::FlowProblem WithOneMore(const plan::FlowProblem& problem, int node);

// The same with times, memory, latencies, cards, trunks and the reach of KV.
plan::GoodputProblem WithOneMore(const plan::GoodputProblem& problem, int node);

// `plan` with stages on the last node of `larger`, which it does not use: one with each range of
// layers of the plan that fits, in each of `roles`, and the stages of each node of the same kind
// that has several.
std::vector<Plan> WithStagesOnLast(const plan::FlowProblem& larger, const Plan& plan,
                                   const std::vector<StageRole>& roles);

// The cluster with a copy of `node`. The copy's links share trunks with the others.
ClusterSpec WithOneMore(const ClusterSpec& cluster, NodeIndex node);

}  // namespace millrace::apps
