#include "experiments/helix_goodput.h"

#include <algorithm>

namespace millrace::experiments {
namespace {

constexpr double kCopySPerByte = 1 / 4e9 + 1 / 5e9;  // joining and copying data that arrives
constexpr size_t kBatchMax = 1000;

plan::RoundsNode NodeOf(const helix::HelixGpu& gpu, int layers_max, double prompt_tokens) {
  plan::RoundsNode node;
  node.decode_s = gpu.decode_s;
  node.decode_s.resize(std::min(node.decode_s.size(), kBatchMax + 1));
  node.prompt_s = gpu.prompt_s[static_cast<size_t>(prompt_tokens)];
  for (int layers = 1; layers <= layers_max; ++layers) {
    node.kv_token_layers.push_back(gpu.LimitsOf(layers).kv_entries);
  }
  return node;
}

}  // namespace

plan::RoundsProblem HelixRounds(const helix::HelixModel& model, const ClusterSpec& cluster,
                                const plan::FlowProblem& flow, double in_flight) {
  plan::RoundsProblem problem{.flow = &flow, .in_flight = in_flight};
  for (const plan::FlowNode& node : flow.nodes) {
    problem.nodes.push_back(
        NodeOf(model.gpus.at(node.kind), node.max_layers(), problem.prompt_tokens));
  }
  const double inner_bytes = model.activation_bytes + model.token_bytes;
  problem.copy_s_per_token = inner_bytes * kCopySPerByte;
  const auto side = static_cast<size_t>(flow.num_nodes()) + 1;
  problem.link_latency_s.assign(side * side, 0);
  problem.link_tokens_per_s.assign(side * side, 0);
  for (const LinkSpec& link : cluster.links) {
    const bool inner = link.from != flow.coordinator() && link.to != flow.coordinator();
    const size_t cell = static_cast<size_t>(link.from) * side + static_cast<size_t>(link.to);
    problem.link_latency_s[cell] = link.latency.seconds();
    problem.link_tokens_per_s[cell] = link.bytes_per_s / (inner ? inner_bytes : model.token_bytes);
  }
  return problem;
}

}  // namespace millrace::experiments
