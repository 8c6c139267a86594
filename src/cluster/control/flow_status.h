// What runs in the stages of a layout, what has flowed along its edges, and what requests wait for
// in pipelines, as the controller's status says it. Pure functions of the controller's parts.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/control/controller_status.h"
#include "cluster/control/layout/layout.h"
#include "cluster/control/parts/edge_flows.h"
#include "cluster/control/parts/membership.h"
#include "cluster/control/pipelines/pipelines.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

// By stage. `options`: of every pipeline.
std::vector<StageStatus> DescribeStages(const Layout& layout, const Membership& members,
                                        const Pipelines& pipelines,
                                        const sched::SchedulerOptions& options);

// The edges of the plan in its order, and then others with flow. `flows`: since the start of the
// controller; `before`: until the layout came into force.
std::vector<EdgeStatus> DescribeEdges(const Layout& layout, const Membership& members,
                                      const EdgeFlows::Table& flows,
                                      const EdgeFlows::Table& before);

// The links over which KV has been handed over, and how fast that went: a hand-over reads and
// writes the pools as well, and on one host its bytes take no network.
inline constexpr int64_t kHandOverBytesMin = int64_t{1} << 20;  // fewer tell nothing of the rate
void UseHandOvers(const EdgeFlows::Table& flows, std::vector<LinkStatus>& links);

// The requests that pipelines have and do not run yet.
WaitingStatus DescribeWaiting(const Pipelines& pipelines);

}  // namespace millrace::cluster
