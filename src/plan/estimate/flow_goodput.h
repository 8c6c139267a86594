// What a placement delivers to users, beyond its maximum flow: requests per second with separate
// prefill and decode rates, layers that are run instead of layers that are held, KV memory that is
// held while a request stays (Little's law), hop latencies, shared trunks, and latency limits. An
// analytic estimate that selects candidates; the simulator ranks them. Pure; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cost/layer_table_cost.h"
#include "plan/flow/flow_problem.h"
#include "plan/flow/placement_flow.h"

namespace millrace::plan {

// Times of one layer on a node, and of what comes after the last one.
struct LayerRates {
  double prefill_s_per_token = 0;
  double decode_s_per_step = 0;   // per step, whatever its batch: the weights are read once
  double decode_s_per_token = 0;  // for each sequence in the step
  // The model's head, on the stage that ends the model: per step, and for each sequence in it.
  double head_s_per_step = 0, head_s_per_token = 0;

  double HeadSeconds(double sequences) const {
    return head_s_per_step + sequences * head_s_per_token;
  }
};
// Fits straight lines through the table at a typical prompt and at small and large decode batches.
LayerRates FitLayerRates(const cost::LayerTable& table);

struct Trunk {
  double tokens_per_s = 0;                 // both directions together
  std::vector<std::pair<int, int>> links;  // (from, to); the coordinator as in FlowProblem
};

// What a stage has on some of a node's devices.
struct DevicesShare {
  std::vector<double> tokens_per_s;  // as FlowNode
  LayerRates rates;
  std::vector<int64_t> kv_token_layers;  // as GoodputProblem
};

struct GoodputProblem {
  FlowProblem flow;
  std::vector<LayerRates> rates;                      // by node
  std::vector<std::vector<int64_t>> kv_token_layers;  // by node, [k - 1]: beside k layers
  // By node, [d - 1]: on d of its devices, fewer than all. Empty: it has one, or the times are not
  // known.
  std::vector<std::vector<DevicesShare>> on_devices;
  // KV that fits beside as well where a node has neither the embedding nor the head.
  int64_t end_token_layers = 0;
  std::vector<double> link_latency_s;  // indexed as FlowProblem::link_tokens_per_s
  // By node, each direction; empty, or 0: no limit.
  std::vector<double> nic_tokens_per_s;
  std::vector<Trunk> trunks;
  double prompt_tokens = 763, output_tokens = 232;  // means of a request
  int prompt_steps = 1;                             // that compute a mean prompt
  int max_sequences = 256;                          // decoded together by one step
  double prompt_spread = 1.6;                       // E[S^2] / E[S]^2 of the prompts' lengths
  std::optional<double> ttft_s, tpot_s;             // limits on the means
  // n x n, row = sender: whether KV may move. Empty: wherever there is a link.
  std::vector<char> kv_reach;
  // By node: the first of those that are parts of one machine. They share its links and its card,
  // and what goes from one to another needs neither. Empty: each is a machine of its own.
  std::vector<int> machine;
  // Not empty: estimates are those after the loss of any one of these nodes, the worst of them.
  std::vector<int> losable;
};

// Of an end of a link, which may be the coordinator. `machine`: as GoodputProblem.
inline int MachineOf(const std::vector<int>& machine, int end) {
  return end < static_cast<int>(machine.size()) ? machine[static_cast<size_t>(end)] : end;
}

struct GoodputEstimate {
  double requests_per_s = 0;
  double decode_tokens_per_s = 0;
  double ttft_s = 0, tpot_s = 0;  // means at that rate
  double residence_s = 0;         // how long a request holds its KV
  std::string limit;              // what limits it: "KV of node 3", "tpot", ...
};

// The highest rate at which the placement's maximum flow, scaled down, meets every limit; with
// losable nodes, of what is left of the placement after the worst loss.
GoodputEstimate EstimateGoodput(const GoodputProblem& problem, const Placement& placement);

// The same along given edges, which carry flow from and to the coordinator.
GoodputEstimate EstimateAlong(const GoodputProblem& problem, const Placement& placement,
                              const std::vector<FlowEdge>& edges);

struct Candidate {
  Placement placement;
  PlacementFlow flow;
  GoodputEstimate estimate;
  std::string method;
};

// Reported when a search or a scoring ends.
struct GoodputProgress {
  std::string doing;
  double requests_per_s = 0;  // of the best so far: scored if possible, else estimated
  double elapsed_s = 0;       // zero without a clock
};

struct CandidateOptions {
  uint64_t seed = 1;
  int top = 10;  // candidates that are returned
  int64_t flow_iterations = 2'000'000;
  int64_t goodput_iterations = 20'000;  // estimates per search
  int64_t rounds_iterations = 8'000;    // the same with EstimateRounds, which is slower
  int searches = 4;
  // How a candidate would be deployed. Unset: along its maximum flow.
  std::function<PlacementFlow(const Placement&)> route;
  // The time limit needs both. Without a clock the result is a function of the problem, the seed
  // and the iterations.
  const Clock* clock = nullptr;
  std::optional<double> time_limit_s;
  std::function<void(const GoodputProgress&)> progress;
};

// Different placements whose stages both prefill and decode, in the order in which a simulator
// should judge them: the best single machine if one holds the model and meets the limits, then the
// best of each method. Errors as PlanByFlow.
Result<std::vector<Candidate>> RankByGoodput(const GoodputProblem& problem,
                                             const CandidateOptions& options);

}  // namespace millrace::plan
