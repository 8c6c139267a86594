#include "plan/flow/flow_from_helix.h"

#include <algorithm>
#include <string>

namespace millrace::plan {

FlowProblem FlowFromHelix(const HelixCapacity& capacity, bool partial_inference) {
  FlowProblem problem;
  problem.cluster = capacity.cluster;
  problem.model = capacity.model;
  problem.num_layers = capacity.num_layers;
  problem.partial_inference = partial_inference;
  for (size_t i = 0; i < capacity.nodes.size(); ++i) {
    const HelixNode& node = capacity.nodes[i];
    const int layers = std::min(node.max_layers(), capacity.num_layers);
    problem.nodes.push_back(
        {.name = "node " + std::to_string(i),
         .kind = node.gpu,
         .region = node.region,
         .tokens_per_s = {node.tokens_per_s.begin(), node.tokens_per_s.begin() + layers}});
  }
  problem.link_tokens_per_s = capacity.link_tokens_per_s;
  return problem;
}

}  // namespace millrace::plan
