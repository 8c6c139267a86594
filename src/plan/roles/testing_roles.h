// Small problems with roles for tests. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/rng.h"
#include "plan/roles/role_problem.h"

namespace millrace::plan {

struct TestNode {
  std::string kind;
  int max_layers = 1;
  double prompt_s = 1e-5, step_s = 2e-3, token_s = 1e-5;  // of one layer
  int64_t kv_token_layers = 1 << 20;
};

// Nodes with links of `link_tokens_per_s` and no latency between all of them.
inline GoodputProblem RoleTestProblem(int num_layers, const std::vector<TestNode>& nodes,
                                      double link_tokens_per_s, double kv_layer_tokens) {
  GoodputProblem problem;
  problem.flow.cluster = "test";
  problem.flow.model = "m";
  problem.flow.num_layers = num_layers;
  problem.flow.partial_inference = false;
  problem.flow.kv_layer_tokens = kv_layer_tokens;
  problem.prompt_tokens = 800;
  problem.output_tokens = 100;
  const double tokens = problem.prompt_tokens + problem.output_tokens;
  for (const TestNode& node : nodes) {
    FlowNode flow{"n" + std::to_string(problem.flow.nodes.size()), node.kind, "", {}};
    std::vector<int64_t> kv;
    for (int k = 1; k <= node.max_layers; ++k) {
      constexpr double kBatch = 32;
      const double request_s = k * (problem.prompt_tokens * node.prompt_s +
                                    problem.output_tokens * (node.step_s / kBatch + node.token_s));
      flow.tokens_per_s.push_back(tokens / request_s);
      kv.push_back(node.kv_token_layers);
    }
    problem.flow.nodes.push_back(std::move(flow));
    problem.rates.push_back({.prefill_s_per_token = node.prompt_s,
                             .decode_s_per_step = node.step_s,
                             .decode_s_per_token = node.token_s});
    problem.kv_token_layers.push_back(std::move(kv));
  }
  const size_t side = nodes.size() + 1;
  problem.flow.link_tokens_per_s.assign(side * side, link_tokens_per_s);
  problem.link_latency_s.assign(side * side, 0);
  AddPhaseRates(problem);
  return problem;
}

// Nodes of three kinds: one computes fast, one reads memory fast, one does neither.
inline std::vector<TestNode> RandomTestNodes(uint64_t seed, int count, int layers_max) {
  Rng rng(seed);
  std::vector<TestNode> kinds;
  for (int k = 0; k < 3; ++k) {
    kinds.push_back({.kind = "k" + std::to_string(k),
                     .max_layers = static_cast<int>(rng.Between(2, layers_max)),
                     .prompt_s = 1e-5 * (k == 0 ? 0.5 : 1 + rng.Uniform()),
                     .step_s = 1e-3 * (k == 1 ? 0.5 : 1 + rng.Uniform()),
                     .token_s = 1e-5 * (k == 1 ? 0.5 : 1 + rng.Uniform()),
                     .kv_token_layers = rng.Between(20'000, 200'000)});
  }
  std::vector<TestNode> nodes;
  for (int i = 0; i < count; ++i) nodes.push_back(kinds[static_cast<size_t>(rng.Between(0, 2))]);
  return nodes;
}

}  // namespace millrace::plan
