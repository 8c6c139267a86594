#include "plan/distserve/goodput_from_cluster.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "plan/roles/role_problem.h"

namespace millrace::plan {
namespace {

double DecodeSeconds(const cost::StepCost& cost, int sequences, double context) {
  cost::BatchShape batch;
  batch.decode_sequences = sequences;
  batch.decode_context = static_cast<int64_t>(sequences * context);
  return cost.Seconds(batch);
}

std::vector<Trunk> TrunksOf(const ClusterSpec& cluster, const TokenBytes& bytes) {
  std::map<TrunkDirection, Trunk> trunks;
  const auto ways = TrunkDirections(cluster);
  for (size_t i = 0; i < cluster.links.size(); ++i) {
    const LinkSpec& link = cluster.links[i];
    const auto& way = ways[i];
    if (!way || link.from == cluster.coordinator() || link.to == cluster.coordinator()) continue;
    Trunk& trunk = trunks[*way];
    trunk.tokens_per_s = cluster.trunks[static_cast<size_t>(way->first)].bytes_per_s /
                         static_cast<double>(bytes.activation);
    trunk.links.emplace_back(link.from, link.to);
  }
  std::vector<Trunk> out;
  for (auto& [way, trunk] : trunks) out.push_back(std::move(trunk));
  return out;
}

// KV moves within a group of kv_affinity and within a numeric class: another class would continue a
// request with other bits.
std::vector<char> KvReach(const ClusterSpec& cluster) {
  const size_t n = cluster.nodes.size();
  std::vector<char> reach(n * n, cluster.kv_affinity.empty() ? 1 : 0);
  for (const auto& group : cluster.kv_affinity) {
    for (const NodeIndex a : group) {
      for (const NodeIndex b : group) {
        reach[static_cast<size_t>(a) * n + static_cast<size_t>(b)] = 1;
      }
    }
  }
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = 0; b < n; ++b) {
      const std::string& x = cluster.nodes[a].numeric_class;
      const std::string& y = cluster.nodes[b].numeric_class;
      if (!x.empty() && !y.empty() && x != y) reach[a * n + b] = 0;
    }
  }
  return reach;
}

std::vector<int64_t> KvTokenLayers(const NodeSpec& node, const ModelFootprint& model,
                                   const WorkloadMix& mix, int max_layers,
                                   const NodeCapacityOptions& options) {
  const double mean = mix.prompt_tokens + mix.output_tokens / 2;
  std::vector<int64_t> kv;
  for (int layers = 1; layers <= max_layers; ++layers) {
    kv.push_back(
        static_cast<int64_t>(ResidentSequences(node, model, mix, layers, options) * mean * layers));
  }
  return kv;
}

// On 1, 2, ... of the node's devices, fewer than all. Nothing where the times are not known.
std::vector<DevicesShare> OnFewerDevices(const NodeSpec& node, const ModelFootprint& model,
                                         const WorkloadMix& mix, const LayerCost& cost,
                                         const NodeCapacityOptions& options) {
  std::vector<DevicesShare> out;
  for (int devices = 1; devices < node.device_count; ++devices) {
    NodeSpec part = node;
    part.device_count = devices;
    part.memory_bytes = node.memory_bytes / node.device_count * devices;
    auto tokens_per_s = NodeTokensPerSecond(part, model, mix, cost, options);
    const auto rates = LayerRatesOf(part, model, mix, cost, options.step_tokens);
    if (!tokens_per_s.ok() || !rates.ok()) return {};
    auto kv = KvTokenLayers(part, model, mix, static_cast<int>(tokens_per_s->size()), options);
    out.push_back({std::move(*tokens_per_s), *rates, std::move(kv)});
  }
  return out;
}

}  // namespace

Result<LayerRates> LayerRatesOf(const NodeSpec& node, const ModelFootprint& model,
                                const WorkloadMix& mix, const LayerCost& cost, int step_tokens) {
  constexpr int kSmall = 8, kLarge = 64;
  MR_ASSIGN_OR_RETURN(const auto layer, cost(node, model, 1));
  MR_ASSIGN_OR_RETURN(const auto whole, cost(node, model, model.spec.num_layers));
  const int steps = StepsOfPrompt(mix, step_tokens);
  const cost::BatchShape chunk = MeanChunk(mix, steps);
  LayerRates rates;
  rates.prefill_s_per_token = layer->Seconds(chunk) / static_cast<double>(chunk.prefill_tokens);
  const double context = mix.prompt_tokens + mix.output_tokens / 2;
  const double small = DecodeSeconds(*layer, kSmall, context);
  const double large = DecodeSeconds(*layer, kLarge, context);
  rates.decode_s_per_token = std::max(0.0, (large - small) / (kLarge - kSmall));
  rates.decode_s_per_step = std::max(0.0, small - kSmall * rates.decode_s_per_token);
  // What a step of the whole model takes beyond its layers.
  const double layers = model.spec.num_layers;
  const double head_small = DecodeSeconds(*whole, kSmall, context) - layers * small;
  const double head_large = DecodeSeconds(*whole, kLarge, context) - layers * large;
  rates.head_s_per_token = std::max(0.0, (head_large - head_small) / (kLarge - kSmall));
  rates.head_s_per_step = std::max(0.0, head_small - kSmall * rates.head_s_per_token);
  return rates;
}

Result<GoodputProblem> GoodputFromCluster(FlowProblem flow, const ClusterSpec& cluster,
                                          const ModelFootprint& model, const WorkloadMix& mix,
                                          const LayerCost& cost, const TokenBytes& bytes,
                                          const NodeCapacityOptions& options) {
  GoodputProblem problem;
  std::map<std::tuple<std::string, int, int64_t>, std::vector<DevicesShare>> known;
  for (size_t i = 0; i < cluster.nodes.size(); ++i) {
    const NodeSpec& node = cluster.nodes[i];
    MR_ASSIGN_OR_RETURN(const LayerRates rates,
                        LayerRatesOf(node, model, mix, cost, options.step_tokens));
    problem.rates.push_back(rates);
    problem.kv_token_layers.push_back(
        KvTokenLayers(node, model, mix, flow.nodes[i].max_layers(), options));
    const auto [share, added] =
        known.try_emplace({node.device, node.device_count, node.memory_bytes});
    if (added) share->second = OnFewerDevices(node, model, mix, cost, options);
    problem.on_devices.push_back(share->second);
  }
  problem.end_token_layers =
      std::max(model.embedding_bytes, model.head_bytes) / model.spec.KvBytesPerToken(1);
  const size_t side = cluster.nodes.size() + 1;
  problem.link_latency_s.assign(side * side, 0);
  for (const LinkSpec& link : cluster.links) {
    problem.link_latency_s[static_cast<size_t>(link.from) * side + static_cast<size_t>(link.to)] =
        link.latency.seconds();
  }
  for (const NodeSpec& node : cluster.nodes) {
    problem.nic_tokens_per_s.push_back(node.nic_bytes_per_s.value_or(0) /
                                       static_cast<double>(bytes.activation));
  }
  problem.trunks = TrunksOf(cluster, bytes);
  problem.prompt_tokens = mix.prompt_tokens;
  problem.output_tokens = mix.output_tokens;
  problem.prompt_steps = StepsOfPrompt(mix, options.step_tokens);
  problem.max_sequences = options.max_sequences;
  problem.kv_reach = KvReach(cluster);
  problem.flow = std::move(flow);
  problem.flow.kv_layer_tokens =
      static_cast<double>(model.spec.KvBytesPerToken(1)) / static_cast<double>(bytes.activation);
  AddPhaseRates(problem);
  return problem;
}

}  // namespace millrace::plan
