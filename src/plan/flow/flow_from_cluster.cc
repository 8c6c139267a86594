#include "plan/flow/flow_from_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "cost/memory_model.h"

namespace millrace::plan {
namespace {

// Bytes for KV beside the weights of `layers` layers; negative if the weights do not fit. Any node
// may be first or last in a route, so each reserves room for the embedding or the head.
double KvBytes(const NodeSpec& node, const ModelFootprint& model, int layers,
               const NodeCapacityOptions& options) {
  const int64_t ends = layers == model.spec.num_layers
                           ? model.embedding_bytes + model.head_bytes
                           : std::max(model.embedding_bytes, model.head_bytes);
  return options.usable_memory * static_cast<double>(node.memory_bytes) -
         static_cast<double>(layers * model.layer_bytes + ends +
                             cost::WorkspaceBytes(model.spec, options.step_tokens));
}

double KvTokens(const NodeSpec& node, const ModelFootprint& model, int layers,
                const NodeCapacityOptions& options) {
  return KvBytes(node, model, layers, options) /
         static_cast<double>(model.spec.KvBytesPerToken(layers));
}

// Decodes run together, with the prefills of their replacements spread over the steps: within as
// many steps as an output has tokens, each of the `batch` sequences is replaced once.
double MixedTokensPerSecond(const cost::StepCost& cost, const WorkloadMix& mix, double batch,
                            int step_tokens) {
  const double context = mix.prompt_tokens + mix.output_tokens / 2;
  cost::BatchShape decode;
  decode.decode_sequences = static_cast<int32_t>(std::max(1.0, std::floor(batch)));
  decode.decode_context = static_cast<int64_t>(decode.decode_sequences * context);
  const int room = step_tokens == 0 ? 0 : std::max(1, step_tokens - decode.decode_sequences);
  const int steps = StepsOfPrompt(mix, room);
  cost::BatchShape with_prompt = MeanChunk(mix, steps);
  with_prompt.decode_sequences = decode.decode_sequences;
  with_prompt.decode_context = decode.decode_context;
  const double decode_s = cost.Seconds(decode);
  const double prompt_s = steps * (cost.Seconds(with_prompt) - decode_s);
  const double sequences = decode.decode_sequences;
  const double seconds = mix.output_tokens * decode_s + sequences * prompt_s;
  const double rate = sequences * (mix.prompt_tokens + mix.output_tokens) / seconds;
  // Less than one sequence at a time: the node is idle in between.
  return rate * std::min(1.0, batch);
}

// Layers that fit beside the KV of one request, with the ends of two stages.
int RoomLayers(const NodeSpec& node, const ModelFootprint& model, const WorkloadMix& mix,
               const NodeCapacityOptions& options) {
  const double each =
      static_cast<double>(model.layer_bytes) +
      static_cast<double>(model.spec.KvBytesPerToken(1)) * (mix.prompt_tokens + mix.output_tokens);
  const double room = options.usable_memory * static_cast<double>(node.memory_bytes) -
                      2.0 * static_cast<double>(model.embedding_bytes + model.head_bytes);
  return static_cast<int>(std::clamp(room / each, 0.0, 2.0 * kPlanLayersMax));
}

Status DoesNotFit(const ClusterSpec& cluster, const ModelFootprint& model,
                  const std::vector<int>& max_layers, const NodeCapacityOptions& options) {
  int64_t held = 0;
  for (int layers : max_layers) held += layers;
  const int64_t missing = model.spec.num_layers - held;
  const double gb = static_cast<double>(missing * model.layer_bytes) / options.usable_memory / 1e9;
  return InvalidArgument(fmt::format(
      "{} does not fit: it has {} layers of {:.2f} GB, and the {} nodes of '{}' hold {} of them "
      "beside the KV cache of one sequence; add nodes with about {:.0f} GB in all, or take a model "
      "of at most {} such layers",
      model.name, model.spec.num_layers, static_cast<double>(model.layer_bytes) / 1e9,
      cluster.nodes.size(), cluster.name, held, std::ceil(gb), held));
}

// Whether activations must not pass between the nodes: they compute different bits.
bool ClassesDiffer(const NodeSpec& a, const NodeSpec& b) {
  return !a.numeric_class.empty() && !b.numeric_class.empty() && a.numeric_class != b.numeric_class;
}

// Nodes that agree in everything that T(k) depends on share its computation. Workers of one device
// may have measured different step times, such as those that get a part of a processor.
using NodeKind = std::tuple<std::string, int, int64_t, std::string>;

NodeKind KindOf(const NodeSpec& node) {
  return {node.device, node.device_count, node.memory_bytes, node.profile};
}

// "l4" or "l4x4". Nodes of one kind are interchangeable. So with several numeric classes the name
// has the class, and for a device whose nodes were measured with different results the first node
// with that result: "l4 as w1".
std::string KindName(const NodeSpec& node, const ClusterSpec& cluster) {
  std::string name =
      node.device_count == 1 ? node.device : fmt::format("{}x{}", node.device, node.device_count);
  if (std::ranges::any_of(cluster.nodes,
                          [&](const NodeSpec& other) { return ClassesDiffer(node, other); })) {
    name = fmt::format("{} ({})", name, node.numeric_class);
  }
  const auto same_device = [&](const NodeSpec& other) {
    return other.device == node.device && other.device_count == node.device_count &&
           other.numeric_class == node.numeric_class;
  };
  const auto same_times = [&](const NodeSpec& other) {
    return same_device(other) && other.profile == node.profile;
  };
  if (std::ranges::count_if(cluster.nodes, same_device) ==
      std::ranges::count_if(cluster.nodes, same_times)) {
    return name;
  }
  return fmt::format("{} as {}", name, std::ranges::find_if(cluster.nodes, same_times)->name);
}

}  // namespace

double ResidentSequences(const NodeSpec& node, const ModelFootprint& model, const WorkloadMix& mix,
                         int layers, const NodeCapacityOptions& options) {
  const double mean = mix.prompt_tokens + mix.output_tokens / 2;
  return std::max(0.0, KvTokens(node, model, layers, options) / mean);
}

int StepsOfPrompt(const WorkloadMix& mix, int step_tokens) {
  if (step_tokens == 0) return 1;
  return std::max(1, static_cast<int>(std::ceil(mix.prompt_tokens / step_tokens)));
}

cost::BatchShape MeanChunk(const WorkloadMix& mix, int steps) {
  const auto tokens = static_cast<int64_t>(std::max(1.0, std::round(mix.prompt_tokens)));
  cost::BatchShape chunk;
  chunk.prefill_sequences = 1;
  chunk.prefill_tokens = std::max<int64_t>(1, tokens / steps);
  chunk.prefill_tokens_squared = tokens * tokens / steps;
  return chunk;
}

int MaxLayers(const NodeSpec& node, const ModelFootprint& model, const WorkloadMix& mix,
              const NodeCapacityOptions& options) {
  int layers = model.spec.num_layers;
  while (layers > 0 &&
         KvTokens(node, model, layers, options) < mix.prompt_tokens + mix.output_tokens) {
    --layers;
  }
  return layers;
}

Result<std::vector<double>> NodeTokensPerSecond(const NodeSpec& node, const ModelFootprint& model,
                                                const WorkloadMix& mix, const LayerCost& cost,
                                                const NodeCapacityOptions& options) {
  std::vector<double> rates;
  const int most = MaxLayers(node, model, mix, options);
  double batch_max = options.max_sequences;
  if (options.step_tokens > 0) {
    // Of the tokens of full steps, as many are prompts as requests have.
    const double outputs = mix.output_tokens / (mix.prompt_tokens + mix.output_tokens);
    batch_max = std::min(batch_max, std::max(1.0, options.step_tokens * outputs));
  }
  for (int layers = 1; layers <= most; ++layers) {
    MR_ASSIGN_OR_RETURN(const auto step, cost(node, model, layers));
    const double stages = std::ceil(static_cast<double>(model.spec.num_layers) / layers);
    const double batch =
        std::min(batch_max, ResidentSequences(node, model, mix, layers, options) / stages);
    const double rate = MixedTokensPerSecond(*step, mix, batch, options.step_tokens);
    if (!std::isfinite(rate) || rate <= 0 || rate > kTokenRateMax) {
      return InvalidArgument(
          fmt::format("device '{}' of node '{}': its cost of {} layers gives {} "
                      "tokens/s",
                      node.device, node.name, layers, rate));
    }
    rates.push_back(rate);
  }
  return rates;
}

Result<FlowProblem> FlowFromCluster(const ClusterSpec& cluster, const ModelFootprint& model,
                                    const WorkloadMix& mix, const LayerCost& cost,
                                    bool partial_inference, const NodeCapacityOptions& options) {
  FlowProblem problem;
  problem.cluster = cluster.name;
  problem.model = model.name;
  problem.num_layers = model.spec.num_layers;
  problem.partial_inference = partial_inference;
  const auto activation_bytes = static_cast<double>(
      options.activation_bytes.value_or(cost::ActivationBytesPerToken(model.spec)));
  std::map<NodeKind, std::vector<double>> known;
  std::vector<int> max_layers;
  for (const NodeSpec& node : cluster.nodes) {
    const NodeKind kind = KindOf(node);
    if (!known.contains(kind)) {
      MR_ASSIGN_OR_RETURN(known[kind], NodeTokensPerSecond(node, model, mix, cost, options));
    }
    FlowNode flow{node.name, KindName(node, cluster), node.region, known[kind]};
    flow.devices = node.device_count;
    flow.room_layers = std::max(flow.max_layers(), RoomLayers(node, model, mix, options));
    if (node.nic_bytes_per_s) {
      for (double& rate : flow.tokens_per_s) {
        rate = std::min(rate, *node.nic_bytes_per_s / activation_bytes);
      }
    }
    max_layers.push_back(flow.max_layers());
    problem.nodes.push_back(std::move(flow));
  }
  int64_t held = 0;
  for (int layers : max_layers) held += layers;
  if (held < model.spec.num_layers) return DoesNotFit(cluster, model, max_layers, options);
  const size_t side = cluster.nodes.size() + 1;
  problem.link_tokens_per_s.assign(side * side, 0);
  for (const LinkSpec& link : cluster.links) {
    double bytes_per_s = link.bytes_per_s;
    if (link.trunk) {
      bytes_per_s =
          std::min(bytes_per_s, cluster.trunks[static_cast<size_t>(*link.trunk)].bytes_per_s);
    }
    const bool ends = link.from == cluster.coordinator() || link.to == cluster.coordinator();
    if (!ends && ClassesDiffer(cluster.nodes[static_cast<size_t>(link.from)],
                               cluster.nodes[static_cast<size_t>(link.to)])) {
      continue;
    }
    const double bytes = ends ? static_cast<double>(options.token_id_bytes) : activation_bytes;
    problem
        .link_tokens_per_s[static_cast<size_t>(link.from) * side + static_cast<size_t>(link.to)] =
        bytes_per_s / bytes;
  }
  return problem;
}

}  // namespace millrace::plan
