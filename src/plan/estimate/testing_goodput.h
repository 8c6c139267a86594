// A small goodput problem for tests. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "plan/roles/role_problem.h"

namespace millrace::plan {

// Four alike nodes and eight layers; reading the weights dominates decode.
inline GoodputProblem FourAlikeNodes() {
  GoodputProblem problem;
  problem.flow.cluster = "four";
  problem.flow.model = "m";
  problem.flow.num_layers = 8;
  for (int i = 0; i < 4; ++i) {
    problem.flow.nodes.push_back(
        {"n" + std::to_string(i), "g", "", {4000, 2000, 1300, 900, 600, 500, 400, 300}});
    problem.rates.push_back(
        {.prefill_s_per_token = 1e-5, .decode_s_per_step = 2e-3, .decode_s_per_token = 1e-5});
    problem.kv_token_layers.push_back(std::vector<int64_t>(8, 1 << 20));
  }
  problem.flow.link_tokens_per_s.assign(25, 1e5);
  problem.link_latency_s.assign(25, 1e-3);
  AddPhaseRates(problem);
  return problem;
}

}  // namespace millrace::plan
