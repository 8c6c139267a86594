#include "plan/flow/baselines.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/rng.h"
#include "plan/flow/flow_bounds.h"

namespace millrace::plan {
namespace {

// Stage s of `stages` equal parts of the model. The first stages have one layer more if it does not
// divide evenly.
LayerRange EqualStage(int num_layers, int stages, int s) {
  const int size = num_layers / stages, longer = num_layers % stages;
  const int begin = s * size + std::min(s, longer);
  return {begin, begin + size + (s < longer ? 1 : 0)};
}

std::vector<double> Window(const std::vector<double>& rates, int begin, int size) {
  std::vector<double> window(rates.begin() + begin, rates.begin() + begin + size);
  std::sort(window.begin(), window.end());
  return window;
}

}  // namespace

std::optional<Placement> SwarmPlacement(const FlowProblem& problem) {
  std::vector<int> order;
  int weakest = problem.num_layers;
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (problem.nodes[i].max_layers() == 0) continue;
    order.push_back(i);
    weakest = std::min(weakest, problem.nodes[i].max_layers());
  }
  if (order.empty()) return std::nullopt;
  const int stages = (problem.num_layers + weakest - 1) / weakest;
  if (static_cast<int>(order.size()) < stages) return std::nullopt;
  const int longest = EqualStage(problem.num_layers, stages, 0).size();
  const auto power = [&](int i) { return problem.nodes[i].TokensPerS(longest); };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return power(a) > power(b); });
  std::vector<double> rate(stages, 0);
  Placement placement(problem.num_nodes());
  for (int node : order) {
    const auto stage = std::min_element(rate.begin(), rate.end()) - rate.begin();
    placement[node] = EqualStage(problem.num_layers, stages, static_cast<int>(stage));
    rate[stage] += power(node);
  }
  return placement;
}

Placement PetalsPlacement(const FlowProblem& problem, uint64_t seed) {
  std::vector<int> order(problem.num_nodes());
  std::iota(order.begin(), order.end(), 0);
  Rng rng(seed);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[rng.Between(0, static_cast<int64_t>(i) - 1)]);
  }
  std::vector<double> rate(problem.num_layers, 0);
  Placement placement(problem.num_nodes());
  for (int node : order) {
    const int size = problem.nodes[node].max_layers();
    if (size == 0) continue;
    int best = 0;
    for (int begin = 1; begin + size <= problem.num_layers; ++begin) {
      if (Window(rate, begin, size) < Window(rate, best, size)) best = begin;
    }
    placement[node] = {best, best + size};
    for (int l = best; l < best + size; ++l) rate[l] += problem.nodes[node].TokensPerS(size);
  }
  return placement;
}

std::optional<Placement> SeparatePipelines(const FlowProblem& problem) {
  std::map<std::string, std::vector<int>> kinds;
  for (int i = 0; i < problem.num_nodes(); ++i) kinds[problem.nodes[i].kind].push_back(i);
  Placement placement(problem.num_nodes());
  bool any = false;
  for (const auto& [kind, members] : kinds) {
    FlowProblem part;
    part.num_layers = problem.num_layers;
    for (int i : members) part.nodes.push_back(problem.nodes[i]);
    const double threshold = ChainThreshold(part);
    if (threshold <= 0) continue;
    const auto chain = ChainPlacement(problem, threshold, members);
    for (int i : members) placement[i] = (*chain)[i];
    any = true;
  }
  if (!any) return std::nullopt;
  return placement;
}

}  // namespace millrace::plan
