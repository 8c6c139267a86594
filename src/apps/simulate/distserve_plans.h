// Plans of DistServe's search for a cluster of alike nodes: tensor parallelism inside nodes,
// pipelines, replicas, prefill and decode apart with KV inside nodes or over the network, or both
// together with chunked prompts. Fast trials rank them; the simulator judges them with the other
// candidates. One thread.
#pragma once

#include <vector>

#include "apps/plan/inputs.h"
#include "core/latency_limits.h"
#include "plan/rank_plans.h"

namespace millrace::apps {

// Whether all nodes are of one kind, with links between any two that share no trunk.
bool AreAlike(const ClusterSpec& cluster);

// At most a few, best first. Empty if the nodes differ, if two of them have no link or links share
// trunks, if there is no limit, or if no unit keeps the limits. All links count as the slowest. A
// function of its arguments. REQUIRES: inputs.goodput.
std::vector<plan::PlanCandidate> DistServePlans(const PlanInputs& inputs,
                                                const LatencyLimits& limits);

}  // namespace millrace::apps
