// Upper bounds on what any placement can carry, and the single chain that often meets them. All of
// them ignore links, so they hold with and without partial inference. Pure functions; any thread.
#pragma once

#include <optional>

#include "plan/flow_problem.h"

namespace millrace::plan {

// Two flows that differ by less than this, relative, are the same: sums of T(k) in different orders
// differ in the last bits, and a bound that is met exactly must be seen to be met.
inline constexpr double kFlowTolerance = 1e-9;

// U = (1/L) sum_i max_k k T_i(k): the bound by which Helix stops early (section 4.4). Loose.
double LayerSumBound(const FlowProblem& problem);

// The largest F with sum_i max_k k min(T_i(k), F) >= L F: no node carries more than the whole flow.
// Never above LayerSumBound.
double SelfConsistentBound(const FlowProblem& problem);

// The most one node alone carries, with its links to the coordinator; none when none holds all.
struct BestSingle {
  int node = 0;
  double tokens_per_s = 0;
};
std::optional<BestSingle> BestSingleNode(const FlowProblem& problem);

// The largest F for which k_i(F) = max{k : T_i(k) >= F} sums to L or more: what one chain through
// all nodes can carry when links do not bind.
double ChainThreshold(const FlowProblem& problem);

// One chain: the nodes in `order` (any subset) take k_i(F) layers each until the model is covered,
// the last one less. Without links it carries F; the caller evaluates it with them. None when the
// nodes in `order` do not suffice.
std::optional<Placement> ChainPlacement(const FlowProblem& problem, double threshold,
                                        const std::vector<int>& order);

// The most layers node i can hold at `tokens_per_s` or more; zero when none.
int LayersAtRate(const FlowNode& node, double tokens_per_s);

// Whether no link carries less than `tokens_per_s`, so that compute alone decides up to there.
bool LinksAreSlack(const FlowProblem& problem, double tokens_per_s);

}  // namespace millrace::plan
