// What users get from a placement, by a short queueing model. Every node returns to its first layer
// with a batch of what arrived meanwhile. Prompts lengthen rounds and occupy links. Requests keep
// their KV while they stay (Little's law). Prefill and decode have separate rates, hops have
// latency, network cards and trunks have bandwidth. The model is slower than EstimateGoodput and
// closer to the simulator. A seeded search finds the placement with the highest estimate. The
// simulator makes the final choice. One thread per call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/estimate/flow_goodput.h"
#include "plan/flow/flow_problem.h"

namespace millrace::plan {

struct RoundsNode {
  std::vector<double> decode_s;  // of one layer, by batch size; the last entry also for larger ones
  double prompt_s = 0;           // one layer, one mean prompt
  double head_s = 0;             // of a step, where the model ends
  std::vector<int64_t> kv_token_layers;  // [k - 1]: beside k layers
};

struct RoundsProblem {
  const FlowProblem* flow = nullptr;
  std::vector<RoundsNode> nodes;
  // (n + 1) x (n + 1) as FlowProblem::link_tokens_per_s. Link rates may differ from those given to
  // the maximum flow.
  std::vector<double> link_latency_s, link_tokens_per_s;
  std::vector<double> nic_tokens_per_s;  // by node, each direction; empty, or 0: no limit
  std::vector<int> machine;              // as GoodputProblem
  std::vector<Trunk> trunks;
  double copy_s_per_token = 0;  // for joining and copying what arrives at a node
  double prompt_tokens = 763, output_tokens = 232;  // means of a request
  int prompt_steps = 1;                             // rounds that compute a mean prompt
  std::optional<double> in_flight;                  // requests kept in the system, if known
  std::optional<double> ttft_s, tpot_s;             // limits on the means
};

// What a higher rate would not keep. kBusy: a node, link, card or trunk is full.
enum class RoundsLimit : uint8_t { kNone, kBusy, kKv, kTtft, kTpot };

struct RoundsEstimate {
  double requests_per_s = 0;
  double decode_s = 0, prompt_s = 0;       // means of one iteration and of one prompt
  RoundsLimit limit = RoundsLimit::kNone;  // kNone: the placement carries nothing
  std::string node;                        // the busiest, or with kKv that with the least room
};

// None: the placement carries nothing, its caches do not hold in_flight requests, or no rate meets
// the limits.
RoundsEstimate EstimateRounds(const RoundsProblem& problem, const Placement& placement);
// The same along given edges, which carry flow from and to the coordinator; a node may run a part
// of the layers that it holds.
RoundsEstimate EstimateRounds(const RoundsProblem& problem, const Placement& placement,
                              const std::vector<FlowEdge>& edges);
GoodputEstimate AsGoodput(const RoundsEstimate& rounds, double output_tokens);

// Simulated annealing from `start`: `iterations` proposals, or until `stop` returns true. Without
// `stop` the result is a function of the arguments.
Placement SearchRounds(const RoundsProblem& problem, const Placement& start, int64_t iterations,
                       uint64_t seed, const std::function<bool()>& stop = nullptr);

// Converts `problem`, which must outlive the result.
RoundsProblem RoundsOf(const GoodputProblem& problem);

}  // namespace millrace::plan
