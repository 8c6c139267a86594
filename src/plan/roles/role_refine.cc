#include "plan/roles/role_refine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/rng.h"

namespace millrace::plan {
namespace {

constexpr double kHotNode = 0.05;  // of the best rate, at the start

// One node takes other layers or another role, or two nodes exchange both.
void MoveNode(const FlowProblem& problem, Rng& rng, RolePlacement& placement) {
  const int64_t last = problem.num_nodes() - 1;
  const auto a = static_cast<size_t>(rng.Between(0, last));
  const auto b = static_cast<size_t>(rng.Between(0, last));
  const int most = problem.nodes[a].max_layers();
  if (most == 0) return;
  const auto any = [&] {
    const auto size = static_cast<int>(rng.Between(1, most));
    const auto begin = static_cast<int>(rng.Between(0, problem.num_layers - size));
    return LayerRange{begin, begin + size};
  };
  switch (rng.Between(0, 5)) {
    case 0: placement.layers[a] = any(); return;
    case 1:
      if (placement.layers[b].size() <= most) placement.layers[a] = placement.layers[b];
      placement.roles[a] = placement.roles[b];
      return;
    case 2: placement.roles[a] = static_cast<StageRole>(rng.Between(0, 2)); return;
    case 3: placement.layers[a] = {}; return;
    case 4: {  // the boundary between two nodes
      LayerRange& x = placement.layers[a];
      LayerRange& y = placement.layers[b];
      const int by = rng.Between(0, 1) == 1 ? 1 : -1;
      if (a == b || x.end != y.begin || x.size() + by < 1 || x.size() + by > most ||
          y.size() - by < 1 || y.size() - by > problem.nodes[b].max_layers()) {
        return;
      }
      x.end += by;
      y.begin += by;
      return;
    }
    default:
      std::swap(placement.roles[a], placement.roles[b]);
      if (placement.layers[a].size() <= problem.nodes[b].max_layers() &&
          placement.layers[b].size() <= most) {
        std::swap(placement.layers[a], placement.layers[b]);
      }
  }
}

}  // namespace

bool HasPrefill(const RoleEstimate& estimate) {
  return std::ranges::any_of(estimate.units,
                             [](const RoleUnit& unit) { return !unit.prefill.stages.empty(); });
}

void RefineRoles(const RoleProblem& problem, int iterations, uint64_t seed,
                 const std::function<bool()>& stop, RoleCandidate& best) {
  Rng rng(seed);
  RolePlacement now = best.placement;
  double value = best.estimate.requests_per_s;
  for (int i = 0; i < iterations && !(stop && stop()); ++i) {
    RolePlacement next = now;
    MoveNode(problem.goodput->flow, rng, next);
    if (next == now) continue;
    RoleEstimate estimate = EstimateRoles(problem, next);
    const double rate = HasPrefill(estimate) ? estimate.requests_per_s : 0;
    const double heat =
        kHotNode * best.estimate.requests_per_s * (1 - static_cast<double>(i) / iterations);
    if (rate < value && (heat <= 0 || rng.Uniform() >= std::exp((rate - value) / heat))) continue;
    now = std::move(next);
    value = rate;
    if (rate > best.estimate.requests_per_s) best = {now, std::move(estimate)};
  }
}

}  // namespace millrace::plan
