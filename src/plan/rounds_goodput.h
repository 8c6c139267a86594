// What users get from a placement, by a few lines of queueing: every node comes round to its first
// layer with a batch of what arrived meanwhile, prompts lengthen rounds and hold up links, and
// requests keep their KV for as long as they stay (Little's law). Prefill and decode have rates of
// their own, hops their latency, network cards and trunks their bandwidth. Dearer and nearer to the
// simulator than EstimateGoodput. And a seeded search for the placement with the most. It guides;
// the simulator decides. One thread per call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "plan/flow_goodput.h"
#include "plan/flow_problem.h"

namespace millrace::plan {

struct RoundsNode {
  std::vector<double> decode_s;          // one layer by batch: [0] of none, the last: and beyond
  double prompt_s = 0;                   // one layer, of a mean prompt
  std::vector<int64_t> kv_token_layers;  // [k - 1]: beside k layers
};

struct RoundsProblem {
  const FlowProblem* flow = nullptr;
  std::vector<RoundsNode> nodes;
  // (n + 1) x (n + 1) as FlowProblem::link_tokens_per_s; what links carry may differ from what the
  // maximum flow is told.
  std::vector<double> link_latency_s, link_tokens_per_s;
  std::vector<double> nic_tokens_per_s;  // by node, each direction; empty, or 0: no limit
  std::vector<Trunk> trunks;
  double copy_s_per_token = 0;                      // joining and copying what comes to a node
  double prompt_tokens = 763, output_tokens = 232;  // means of a request
  std::optional<double> in_flight;                  // requests that are kept there, if it is known
  std::optional<double> ttft_s, tpot_s;             // limits on the means
};

struct RoundsEstimate {
  double requests_per_s = 0;
  double decode_s = 0, prompt_s = 0;  // of one iteration and of a prompt, on average
};

// None: it carries nothing, its caches do not hold so many, or no rate keeps the limits.
RoundsEstimate EstimateRounds(const RoundsProblem& problem, const Placement& placement);

// Simulated annealing from `start`, `iterations` proposals or until `stop` says so; a function of
// its arguments where `stop` is not given.
Placement SearchRounds(const RoundsProblem& problem, const Placement& start, int64_t iterations,
                       uint64_t seed, const std::function<bool()>& stop = nullptr);

// `problem` in these terms. It outlives the result.
RoundsProblem RoundsOf(const GoodputProblem& problem);

}  // namespace millrace::plan
