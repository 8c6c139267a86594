// From machines, a model and a workload to the goodput problem: the flow problem's rates, and
// beside them what prefill and decode take, the KV that fits, latencies and trunks. Pure; any
// thread.
#pragma once

#include <optional>

#include "base/status.h"
#include "plan/flow_from_cluster.h"
#include "plan/flow_goodput.h"
#include "plan/trunks.h"

namespace millrace::plan {

// Seconds of one layer on `node` at the lengths of `mix`.
Result<LayerRates> LayerRatesOf(const NodeSpec& node, const ModelFootprint& model,
                                const WorkloadMix& mix, const LayerCost& cost);

// `flow` is FlowFromCluster's for the same arguments. A trunk counts as one for each direction, and
// for activations alone.
Result<GoodputProblem> GoodputFromCluster(FlowProblem flow, const ClusterSpec& cluster,
                                          const ModelFootprint& model, const WorkloadMix& mix,
                                          const LayerCost& cost, const TokenBytes& bytes,
                                          const NodeCapacityOptions& options = {});

}  // namespace millrace::plan
