// Builds the flow problem from machines, a model and a workload: how many layers fit in each node's
// memory beside the KV cache of its sequences, how many tokens per second it then computes, and
// what each link carries. Pure; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "core/cluster_spec.h"
#include "core/model_spec.h"
#include "cost/step_cost.h"
#include "plan/flow/flow_problem.h"

namespace millrace::plan {

// Memory and compute needs of a model, independent of machines.
struct ModelFootprint {
  std::string name;
  ModelSpec spec;               // with dtype
  int64_t layer_bytes = 0;      // weights of one layer
  int64_t embedding_bytes = 0;  // on the node of layer 0
  int64_t head_bytes = 0;       // on the node of the last layer
};

// Means over all requests.
struct WorkloadMix {
  double prompt_tokens = 0, output_tokens = 0;
};

struct NodeCapacityOptions {
  double usable_memory = 0.9;  // the rest holds buffers and the runtime
  // Tokens of a step at most: longer prompts take several, and its activations take memory beside
  // the weights. Zero: any number, and no memory.
  int step_tokens = 2048;
  int max_sequences = 256;     // decoded together by one step
  int64_t token_id_bytes = 4;  // of one token between a node and the coordinator
  // Of one token between nodes; unset: in the model's type.
  std::optional<int64_t> activation_bytes = {};
};

// The cost of `layers` layers of the model on a node, using all its devices.
using LayerCost = std::function<Result<std::unique_ptr<cost::StepCost>>(
    const NodeSpec& node, const ModelFootprint& model, int layers)>;

// How many sequences of the mix fit in a node's memory beside `layers` layers of weights, taking
// each at the middle of its output. Below one if not one whole sequence fits.
double ResidentSequences(const NodeSpec& node, const ModelFootprint& model, const WorkloadMix& mix,
                         int layers, const NodeCapacityOptions& options);

// The largest number of layers beside which one whole sequence still fits; 0 if none.
int MaxLayers(const NodeSpec& node, const ModelFootprint& model, const WorkloadMix& mix,
              const NodeCapacityOptions& options);

// How many steps with room for `step_tokens` a mean prompt takes; one if there is room for any
// number (zero).
int StepsOfPrompt(const WorkloadMix& mix, int step_tokens);
// The mean one of these steps, with nothing but the prompt: its attention reaches back to those
// before.
cost::BatchShape MeanChunk(const WorkloadMix& mix, int steps);

// T(k) for k = 1 to MaxLayers: tokens per second, prompt and decode together. A route through such
// nodes has L / k stages. One stage at a time works on its share of the sequences resident in all
// of them; that share is its batch. A step also has room for the prompts that replace them.
Result<std::vector<double>> NodeTokensPerSecond(const NodeSpec& node, const ModelFootprint& model,
                                                const WorkloadMix& mix, const LayerCost& cost,
                                                const NodeCapacityOptions& options);

// A trunk bounds each of its links here; TrunkOverload checks what several links carry together.
// Returns kInvalidArgument, with what is missing, if all memories together do not hold the model.
Result<FlowProblem> FlowFromCluster(const ClusterSpec& cluster, const ModelFootprint& model,
                                    const WorkloadMix& mix, const LayerCost& cost,
                                    bool partial_inference,
                                    const NodeCapacityOptions& options = {});

}  // namespace millrace::plan
