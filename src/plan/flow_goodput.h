// What a placement is worth to users, beyond its maximum flow: requests per second with separate
// prefill and decode rates, layers that are run and not layers that are held, KV memory held for as
// long as a request stays (Little's law), hop latencies, shared trunks, and limits on latency. An
// analytic estimate, for choosing candidates; the simulator ranks them. Pure; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cost/layer_table_cost.h"
#include "plan/flow_problem.h"
#include "plan/placement_flow.h"

namespace millrace::plan {

// What one layer takes on a node.
struct LayerRates {
  double prefill_s_per_token = 0;
  double decode_s_per_step = 0;   // of one step, whatever its batch: the weights stream once
  double decode_s_per_token = 0;  // and for each sequence in it
};
// Straight lines through the table at a usual prompt and at small and large decode batches.
LayerRates FitLayerRates(const cost::LayerTable& table);

struct Trunk {
  double tokens_per_s = 0;                 // in each direction together
  std::vector<std::pair<int, int>> links;  // (from, to); the coordinator as in FlowProblem
};

struct GoodputProblem {
  FlowProblem flow;
  std::vector<LayerRates> rates;                      // by node
  std::vector<std::vector<int64_t>> kv_token_layers;  // by node, [k - 1]: beside k layers
  std::vector<double> link_latency_s;                 // as FlowProblem::link_tokens_per_s
  std::vector<double> nic_tokens_per_s;               // by node, each way; empty, or 0: no limit
  std::vector<Trunk> trunks;
  double prompt_tokens = 763, output_tokens = 232;  // means of a request
  std::optional<double> ttft_s, tpot_s;             // limits on the means
};

struct GoodputEstimate {
  double requests_per_s = 0;
  double decode_tokens_per_s = 0;
  double ttft_s = 0, tpot_s = 0;  // means at that rate
  double residence_s = 0;         // how long a request holds its KV
  std::string limit;              // what ends it: "KV of node 3", "tpot", ...
};

// The rate at which the placement's maximum flow, scaled down, keeps to every limit.
GoodputEstimate EstimateGoodput(const GoodputProblem& problem, const Placement& placement);

// The same along given edges: `edges` carry flow from and to the coordinator.
GoodputEstimate EstimateAlong(const GoodputProblem& problem, const Placement& placement,
                              const std::vector<FlowEdge>& edges);

struct Candidate {
  Placement placement;
  PlacementFlow flow;
  GoodputEstimate estimate;
  std::optional<double> score;  // by the evaluator: more is better
  std::string method;
};

struct JudgeHints {
  double most_estimated = 0;  // requests per second, of the best candidate by its estimate
  double best_score = 0;      // so far
};
// Judges a plan, in the simulator for one. An error leaves the candidate unjudged: a judge may say
// so of what is no better than the best so far.
using Evaluator = std::function<Result<double>(const Plan&, const JudgeHints&)>;

// Told whenever a search or a judgement ends.
struct GoodputProgress {
  std::string doing;
  double requests_per_s = 0;  // of the best so far: by the evaluator, before it by the estimate
  double elapsed_s = 0;       // zero without a clock
};

struct CandidateOptions {
  uint64_t seed = 1;
  int top = 10;  // given to the evaluator
  int64_t flow_iterations = 2'000'000;
  int64_t goodput_iterations = 20'000;  // estimates in each of the searches
  int64_t rounds_iterations = 8'000;    // the same by EstimateRounds, which are dearer
  int searches = 4;
  // How a candidate would be deployed; none: along its maximum flow.
  std::function<PlacementFlow(const Placement&)> route;
  // The time limit needs both. Searches get the first part of it, the evaluator the rest; whoever
  // was not judged by then stands behind those who were. Without a clock the result is a function
  // of the problem, the seed, the iterations and the evaluator.
  const Clock* clock = nullptr;
  std::optional<double> time_limit_s;
  std::function<void(const GoodputProgress&)> progress;
};

// Placements that differ, best first: by `evaluator`'s score when given, else by the estimate. The
// best single machine is among them wherever one holds the model and keeps the limits, so nothing
// that is worse comes first. Errors as PlanByFlow.
Result<std::vector<Candidate>> RankByGoodput(const GoodputProblem& problem,
                                             const CandidateOptions& options,
                                             const Evaluator& evaluator);

}  // namespace millrace::plan
