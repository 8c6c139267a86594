// Random problems for tests, drawn from a seed. Pure; any thread.
#pragma once

#include <algorithm>

#include "base/rng.h"
#include "plan/flow/flow_problem.h"

namespace millrace::plan {

struct RandomProblemShape {
  int nodes_max = 6, layers_max = 8, kinds_max = 3;
  double link_tokens_per_s = 0;  // links are drawn up to this; zero: they never bind
};

// Nodes of a few kinds; k T(k) falls with k, as KV shrinks. If links bind, some are absent.
inline FlowProblem RandomProblem(uint64_t seed, const RandomProblemShape& shape) {
  Rng rng(seed);
  FlowProblem problem;
  problem.cluster = "random";
  problem.model = "random";
  problem.num_layers = static_cast<int>(rng.Between(1, shape.layers_max));
  problem.partial_inference = rng.Between(0, 1) == 1;
  const int kinds = static_cast<int>(rng.Between(1, shape.kinds_max));
  std::vector<std::vector<double>> rates(kinds);
  for (auto& rate : rates) {
    const int layers = static_cast<int>(rng.Between(1, problem.num_layers));
    const double power = 100 + 900 * rng.Uniform(), fall = 0.7 + 0.3 * rng.Uniform();
    double layer_tokens = power;
    for (int k = 1; k <= layers; ++k, layer_tokens *= fall) rate.push_back(layer_tokens / k);
  }
  const int n = static_cast<int>(rng.Between(1, shape.nodes_max));
  for (int i = 0; i < n; ++i) {
    const int kind = static_cast<int>(rng.Between(0, kinds - 1));
    problem.nodes.push_back({"n" + std::to_string(i), "k" + std::to_string(kind), "", rates[kind]});
  }
  for (int u = 0; u <= n; ++u) {
    for (int v = 0; v <= n; ++v) {
      double rate = 1e6;
      if (shape.link_tokens_per_s > 0) {
        rate = rng.Between(0, 4) == 0 ? 0 : rng.Uniform() * shape.link_tokens_per_s;
      }
      problem.link_tokens_per_s.push_back(u == v ? 0 : rate);
    }
  }
  return problem;
}

// A random placement of `problem`'s nodes; about one in eight stays unused.
inline Placement RandomPlacement(const FlowProblem& problem, Rng& rng) {
  Placement placement(problem.num_nodes());
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (problem.nodes[i].max_layers() == 0 || rng.Between(0, 7) == 0) continue;
    const int k = static_cast<int>(rng.Between(1, problem.nodes[i].max_layers()));
    const int begin = static_cast<int>(rng.Between(0, problem.num_layers - k));
    placement[i] = {begin, begin + k};
  }
  return placement;
}

}  // namespace millrace::plan
