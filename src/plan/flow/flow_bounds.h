// Upper bounds on what any placement can carry, and the single chain that often reaches them. All
// ignore links, so they hold with and without partial inference. Pure functions; any thread.
#pragma once

#include <optional>

#include "plan/flow/flow_problem.h"

namespace millrace::plan {

// Flows that differ relatively by less than this are equal. Sums of T(k) in different orders differ
// in the last bits, and a bound that is reached exactly must be recognised.
inline constexpr double kFlowTolerance = 1e-9;

// U = (1/L) sum_i max_k k T_i(k): the bound by which Helix stops early (section 4.4). Loose.
double LayerSumBound(const FlowProblem& problem);

// The largest F with sum_i max_k k min(T_i(k), F) >= L F: no node carries more than the whole flow.
// Never above LayerSumBound.
double SelfConsistentBound(const FlowProblem& problem);

// The most that one node alone carries, with its links to the coordinator. None if no node holds
// the whole model.
struct BestSingle {
  int node = 0;
  double tokens_per_s = 0;
};
std::optional<BestSingle> BestSingleNode(const FlowProblem& problem);

// The largest F for which k_i(F) = max{k : T_i(k) >= F} sums to L or more: what one chain through
// all nodes can carry if links do not bind.
double ChainThreshold(const FlowProblem& problem);

// One chain: the nodes in `order` (any subset) take k_i(F) layers each until the model is covered;
// the last may take fewer. Without links it carries F; the caller evaluates it with them. None if
// the nodes in `order` do not suffice.
std::optional<Placement> ChainPlacement(const FlowProblem& problem, double threshold,
                                        const std::vector<int>& order);

// The most layers that the node can hold at `tokens_per_s` or more; zero if none.
int LayersAtRate(const FlowNode& node, double tokens_per_s);

// Whether every link carries at least `tokens_per_s`, so that only compute limits rates up to that.
bool LinksAreSlack(const FlowProblem& problem, double tokens_per_s);

}  // namespace millrace::plan
