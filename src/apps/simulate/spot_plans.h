// Plans of SpotServe's optimizer for a cluster of alike nodes: D equal pipelines of P stages, each
// on M devices of one node, with B requests at a time (SpotServe section 3.2, Algorithm 1, with
// iterations instead of whole batches). The simulator judges them with the other candidates. One
// thread.
#pragma once

#include <vector>

#include "apps/plan/inputs.h"
#include "core/latency_limits.h"
#include "plan/rank_plans.h"

namespace millrace::apps {

// One plan, or none: the nodes differ, two of them have no link, no pipeline fits, or the plan
// found misses the limits. It carries the rate of the inputs with the least latency, on the fewest
// nodes; without a rate, or if none carries it, the most requests. A function of its arguments.
// REQUIRES: inputs.goodput.
std::vector<plan::PlanCandidate> SpotServePlans(const PlanInputs& inputs,
                                                const LatencyLimits& limits);

// The candidates of the searches for alike nodes: DistServe's and SpotServe's. REQUIRES:
// inputs.goodput.
std::vector<plan::PlanCandidate> PlansOfAlikeNodes(const PlanInputs& inputs,
                                                   const LatencyLimits& limits);

}  // namespace millrace::apps
