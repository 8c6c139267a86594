#include "plan/flow/flow_bounds.h"

#include <algorithm>

namespace millrace::plan {
namespace {

constexpr int kBisectionSteps = 200;  // enough to exhaust a double's precision

// The layer tokens per second of all nodes together if none runs above `cap`.
double CappedLayerTokens(const FlowProblem& problem, double cap) {
  double sum = 0;
  for (const FlowNode& node : problem.nodes) {
    double best = 0;
    for (int k = 1; k <= node.max_layers(); ++k) {
      best = std::max(best, k * std::min(node.TokensPerS(k), cap));
    }
    sum += best;
  }
  return sum;
}

}  // namespace

double LayerSumBound(const FlowProblem& problem) {
  return CappedLayerTokens(problem, kTokenRateMax) / problem.num_layers;
}

double SelfConsistentBound(const FlowProblem& problem) {
  // h(F) = sum / F falls with F, so the F with h(F) >= L form an interval from 0.
  double low = 0, high = LayerSumBound(problem) * (1 + kFlowTolerance);
  for (int step = 0; step < kBisectionSteps && high - low > high * 1e-15; ++step) {
    const double middle = (low + high) / 2;
    const double needed = problem.num_layers * middle;
    (CappedLayerTokens(problem, middle) >= needed * (1 - kFlowTolerance) ? low : high) = middle;
  }
  return std::min(high, LayerSumBound(problem));
}

std::optional<BestSingle> BestSingleNode(const FlowProblem& problem) {
  std::optional<BestSingle> best;
  for (int i = 0; i < problem.num_nodes(); ++i) {
    if (problem.nodes[i].max_layers() < problem.num_layers) continue;
    const double rate =
        std::min({problem.nodes[i].TokensPerS(problem.num_layers),
                  problem.Link(problem.coordinator(), i), problem.Link(i, problem.coordinator())});
    if (!best || rate > best->tokens_per_s) best = BestSingle{i, rate};
  }
  return best;
}

int LayersAtRate(const FlowNode& node, double tokens_per_s) {
  for (int k = node.max_layers(); k >= 1; --k) {
    if (node.TokensPerS(k) >= tokens_per_s) return k;
  }
  return 0;
}

double ChainThreshold(const FlowProblem& problem) {
  std::vector<double> rates;
  for (const FlowNode& node : problem.nodes) {
    rates.insert(rates.end(), node.tokens_per_s.begin(), node.tokens_per_s.end());
  }
  std::sort(rates.begin(), rates.end(), std::greater<>());
  // The layers held grow as F falls; bisection finds the highest rate that suffices.
  const auto enough = [&](double rate) {
    int64_t layers = 0;
    for (const FlowNode& node : problem.nodes) layers += LayersAtRate(node, rate);
    return layers >= problem.num_layers;
  };
  const auto it =
      std::partition_point(rates.begin(), rates.end(), [&](double rate) { return !enough(rate); });
  return it == rates.end() ? 0 : *it;
}

std::optional<Placement> ChainPlacement(const FlowProblem& problem, double threshold,
                                        const std::vector<int>& order) {
  Placement placement(problem.num_nodes());
  int next = 0;
  for (int node : order) {
    if (next == problem.num_layers) break;
    const int k = std::min(LayersAtRate(problem.nodes[node], threshold), problem.num_layers - next);
    if (k == 0) continue;
    placement[node] = {next, next + k};
    next += k;
  }
  if (next < problem.num_layers) return std::nullopt;
  return placement;
}

bool LinksAreSlack(const FlowProblem& problem, double tokens_per_s) {
  const int n = problem.num_nodes();
  for (int u = 0; u <= n; ++u) {
    for (int v = 0; v <= n; ++v) {
      if (u != v && problem.Link(u, v) < tokens_per_s) return false;
    }
  }
  return true;
}

}  // namespace millrace::plan
