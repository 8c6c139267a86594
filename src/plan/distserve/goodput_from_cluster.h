// Builds the goodput problem from machines, a model and a workload: the flow problem's rates,
// prefill and decode times, the KV that fits, latencies and trunks. Pure; any thread.
#pragma once

#include <optional>

#include "base/status.h"
#include "plan/estimate/flow_goodput.h"
#include "plan/flow/flow_from_cluster.h"
#include "plan/flow/trunks.h"

namespace millrace::plan {

// Times of one layer on `node`, in seconds, at the lengths of `mix`, with prompts computed in steps
// of at most `step_tokens` tokens. Zero: any number.
Result<LayerRates> LayerRatesOf(const NodeSpec& node, const ModelFootprint& model,
                                const WorkloadMix& mix, const LayerCost& cost, int step_tokens);

// `flow` is FlowFromCluster's result for the same arguments. A trunk counts once per direction, and
// for activations only.
Result<GoodputProblem> GoodputFromCluster(FlowProblem flow, const ClusterSpec& cluster,
                                          const ModelFootprint& model, const WorkloadMix& mix,
                                          const LayerCost& cost, const TokenBytes& bytes,
                                          const NodeCapacityOptions& options = {});

}  // namespace millrace::plan
