#include "plan/roles/pool_placement.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "plan/flow/baselines.h"
#include "plan/flow/flow_bounds.h"
#include "plan/flow/layer_cover.h"
#include "plan/flow/search_moves.h"

namespace millrace::plan {
namespace {

constexpr double kHotPool = 0.02;  // of the best rate, at the start
constexpr int kFastestChains = 6;

FlowProblem OnlyMembers(const FlowProblem& problem, const std::vector<bool>& members) {
  FlowProblem out = problem;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!members[i]) out.nodes[i].tokens_per_s.clear();
  }
  return out;
}

// Chains of the nodes in `order`, one after another until the rest cannot hold the model. The nodes
// of a chain take layers in proportion to their speed, as far as their memory allows.
void AddChains(const FlowProblem& problem, const std::vector<int>& order, Placement& placement) {
  for (size_t first = 0; first < order.size();) {
    int held = 0;
    size_t last = first;
    while (last < order.size() && held < problem.num_layers) {
      held += problem.nodes[order[last++]].max_layers();
    }
    if (held < problem.num_layers) return;
    const std::vector<int> members(order.begin() + static_cast<std::ptrdiff_t>(first),
                                   order.begin() + static_cast<std::ptrdiff_t>(last));
    FlowProblem part;
    part.num_layers = problem.num_layers;
    for (int i : members) part.nodes.push_back(problem.nodes[i]);
    const auto chain = ChainPlacement(problem, ChainThreshold(part), members);
    if (!chain) return;
    for (int i : members) placement[i] = (*chain)[i];
    first = last;
  }
}

void SortByRegionAndKind(const FlowProblem& problem, std::vector<int>& nodes) {
  std::ranges::stable_sort(nodes, [&](int a, int b) {
    const FlowNode& x = problem.nodes[a];
    const FlowNode& y = problem.nodes[b];
    return std::tie(x.region, x.kind) < std::tie(y.region, y.kind);
  });
}

// Nodes that hold the whole model have a copy each; the others form chains, region by region.
Placement CopiesAndChains(const FlowProblem& problem) {
  Placement placement(problem.num_nodes());
  std::vector<int> rest;
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (problem.nodes[i].max_layers() >= problem.num_layers) {
      placement[i] = {0, problem.num_layers};
    } else if (problem.nodes[i].max_layers() > 0) {
      rest.push_back(i);
    }
  }
  SortByRegionAndKind(problem, rest);
  AddChains(problem, rest, placement);
  return placement;
}

// Chains of all nodes, region by region: shorter stages than copies, with more KV beside them.
Placement Chains(const FlowProblem& problem) {
  Placement placement(problem.num_nodes());
  std::vector<int> order;
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (problem.nodes[i].max_layers() > 0) order.push_back(i);
  }
  SortByRegionAndKind(problem, order);
  AddChains(problem, order, placement);
  return placement;
}

// Chains of the fastest nodes, region by region: slow ones in a chain make all of it miss the
// limits. `offer` sees the placement after each further chain.
template <typename Offer>
void FastestChains(const FlowProblem& problem, const Offer& offer) {
  std::vector<int> order;
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (problem.nodes[i].max_layers() > 0) order.push_back(i);
  }
  std::ranges::stable_sort(order, [&](int a, int b) {
    return problem.nodes[a].TokensPerS(1) > problem.nodes[b].TokensPerS(1);
  });
  Placement placement(problem.num_nodes());
  std::vector<int> members;
  int held = 0, chains = 0;
  for (const int node : order) {
    members.push_back(node);
    held += problem.nodes[node].max_layers();
    if (held < problem.num_layers) continue;
    std::ranges::stable_sort(
        members, [&](int a, int b) { return problem.nodes[a].region < problem.nodes[b].region; });
    AddChains(problem, members, placement);
    offer(placement);
    members.clear();
    held = 0;
    if (++chains == kFastestChains) return;
  }
}

int64_t RoomForLayers(const FlowProblem& problem) {
  int64_t held = 0;
  for (const FlowNode& node : problem.nodes) held += node.max_layers();
  return held;
}

}  // namespace

const FlowProblem& PoolPlacer::FlowOf(StageRole role) const {
  switch (role) {
    case StageRole::kPrefill: return problem_.prefill;
    case StageRole::kDecode: return problem_.decode;
    case StageRole::kBoth: break;
  }
  return problem_.goodput->flow;
}

double PoolPlacer::RateOf(StageRole role, const Placement& placement) const {
  switch (role) {
    case StageRole::kPrefill: return PrefillAlone(problem_, placement);
    case StageRole::kDecode: return DecodeAlone(problem_, placement);
    case StageRole::kBoth: break;
  }
  return EstimateTogether(problem_, placement).requests_per_s;
}

const Placement& PoolPlacer::Place(StageRole role, const std::vector<bool>& members) {
  const auto [it, added] = known_.try_emplace({role, members}, Placement(members.size()));
  Placement& best = it->second;
  if (!added) return best;
  const FlowProblem pool = OnlyMembers(FlowOf(role), members);
  if (RoomForLayers(pool) < pool.num_layers) return best;
  double best_rate = 0;
  const auto offer = [&](const std::optional<Placement>& placement) {
    if (!placement) return;
    const double rate = RateOf(role, *placement);
    if (rate <= best_rate) return;
    best_rate = rate;
    best = *placement;
  };
  offer(CopiesAndChains(pool));
  offer(Chains(pool));
  FastestChains(pool, offer);
  offer(SwarmPlacement(pool));
  offer(SeparatePipelines(pool));
  if (best_rate <= 0) offer(PetalsPlacement(pool, 1));
  return best;
}

Placement PoolPlacer::Improve(StageRole role, const std::vector<bool>& members,
                              const Placement& start, int iterations, uint64_t seed,
                              const std::function<bool()>& stop) const {
  const FlowProblem pool = OnlyMembers(FlowOf(role), members);
  if (RoomForLayers(pool) == 0) return start;
  Rng rng(seed);
  MoveMaker maker(pool, rng);
  const LayerCover cover(pool.num_layers);
  Placement now = start, best = start;
  double value = RateOf(role, now), best_value = value;
  for (int i = 0; i < iterations && !(stop && stop()); ++i) {
    const auto& moves = maker.Propose(now, cover);
    if (moves.empty()) continue;
    Placement next = now;
    for (const NodeMove& move : moves) next[move.node] = move.range;
    const double other = RateOf(role, next);
    const double heat = kHotPool * best_value * (1 - static_cast<double>(i) / iterations);
    if (other < value && (heat <= 0 || rng.Uniform() >= std::exp((other - value) / heat))) continue;
    now = std::move(next);
    value = other;
    if (value <= best_value) continue;
    best_value = value;
    best = now;
  }
  return best;
}

}  // namespace millrace::plan
