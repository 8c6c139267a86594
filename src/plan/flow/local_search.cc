#include "plan/flow/local_search.h"

#include <algorithm>
#include <cmath>

#include "plan/flow/flow_bounds.h"
#include "plan/flow/incremental_flow.h"
#include "plan/flow/layer_cover.h"
#include "plan/flow/search_moves.h"

namespace millrace::plan {
namespace {

constexpr int64_t kTimeCheckEvery = 4096;  // proposals
constexpr double kCoolingCover = 0.01;     // ratio of the last temperature to the first
constexpr double kCoolingFlow = 0.03;
constexpr double kHotFlow = 0.06;           // of the best flow, at SearchBudget::hot 1
constexpr int64_t kRecountEvery = 1 << 16;  // proposals; a recount clears rounding drift

// Falls geometrically from `hot` to `cold` over a run.
class Temperature {
 public:
  Temperature(double hot, double cold, int64_t iterations)
      : value_(hot), factor_(std::pow(cold / hot, static_cast<double>(kSteps) / iterations)) {}
  double At(int64_t iteration) {
    if (iteration % kSteps == 0 && iteration > 0) value_ *= factor_;
    return value_;
  }

 private:
  static constexpr int64_t kSteps = 256;
  double value_;
  double factor_;
};

double RateOf(const FlowProblem& problem, int node, const LayerRange& range) {
  return range.size() > 0 ? problem.nodes[node].TokensPerS(range.size()) : 0;
}

void FillCover(const FlowProblem& problem, const Placement& placement, double cap,
               LayerCover& cover) {
  cover.Clear();
  for (int i = 0; i < problem.num_nodes(); ++i) {
    cover.Add(placement[i], std::min(cap, RateOf(problem, i, placement[i])));
  }
}

double TrueCover(const FlowProblem& problem, const Placement& placement) {
  LayerCover cover(problem.num_layers);
  FillCover(problem, placement, kTokenRateMax, cover);
  return cover.Least();
}

// Annealing on the shortfall to a target slightly above the best. When the target is reached, it
// rises.
class CoverSearch {
 public:
  CoverSearch(const FlowProblem& problem, const Placement& start, double goal,
              const SearchBudget& budget)
      : problem_(problem),
        goal_(goal),
        budget_(budget),
        rng_(budget.seed),
        maker_(problem, rng_),
        placement_(start),
        cover_(problem.num_layers) {}

  SearchResult Run() {
    Reached();
    // Measured in units of the target: a move shifts some layers by a fraction of it.
    Temperature temperature(budget_.hot, budget_.hot * kCoolingCover, budget_.iterations);
    for (int64_t i = 0; i < budget_.iterations; ++i) {
      if (best_.tokens_per_s >= goal_ * (1 - kFlowTolerance)) break;
      if (i % kTimeCheckEvery == 0 && budget_.out_of_time && budget_.out_of_time()) break;
      if (i % kRecountEvery == 0) FillCover(problem_, placement_, cover_.target(), cover_);
      ++best_.iterations;
      Step(temperature.At(i) * cover_.target());
      if (cover_.shortfall() <= cover_.target() * kFlowTolerance) Reached();
    }
    return best_;
  }

 private:
  void Move(int node, const LayerRange& range) {
    const double cap = cover_.target();
    cover_.Add(placement_[node], -std::min(cap, RateOf(problem_, node, placement_[node])));
    placement_[node] = range;
    cover_.Add(range, std::min(cap, RateOf(problem_, node, range)));
  }

  void Step(double temperature) {
    const auto& moves = maker_.Propose(placement_, cover_);
    if (moves.empty()) return;
    const double before = cover_.shortfall();
    undo_.clear();
    for (const NodeMove& move : moves) {
      undo_.push_back({move.node, placement_[move.node]});
      Move(move.node, move.range);
    }
    const double worse = cover_.shortfall() - before;
    if (worse <= 0 || rng_.Uniform() < std::exp(-worse / temperature)) return;
    for (const NodeMove& move : undo_) Move(move.node, move.range);
  }

  // Records what the placement covers and sets the next target.
  void Reached() {
    const double value = TrueCover(problem_, placement_);
    if (value > best_.tokens_per_s || best_.placement.empty()) {
      best_.tokens_per_s = value;
      best_.placement = placement_;
    }
    cover_.SetTarget(std::min(std::max(best_.tokens_per_s, goal_ * 1e-3) * budget_.raise, goal_));
    FillCover(problem_, placement_, cover_.target(), cover_);
  }

  const FlowProblem& problem_;
  const double goal_;
  const SearchBudget& budget_;
  Rng rng_;
  MoveMaker maker_;
  Placement placement_;
  LayerCover cover_;
  std::vector<NodeMove> undo_;
  SearchResult best_;
};

// Annealing on the flow itself, with a small reward for cover where the flow is flat.
class FlowSearch {
 public:
  FlowSearch(const FlowProblem& problem, const Placement& start, double goal,
             const SearchBudget& budget)
      : problem_(problem),
        goal_(goal),
        budget_(budget),
        rng_(budget.seed),
        maker_(problem, rng_),
        flow_(problem),
        cover_(problem.num_layers) {
    flow_.Reset(start);
    best_.placement = start;
    best_.tokens_per_s = flow_.value();
    NewTarget();
  }

  SearchResult Run() {
    // Measured in units of the best flow.
    Temperature temperature(budget_.hot * kHotFlow, budget_.hot * kHotFlow * kCoolingFlow,
                            budget_.iterations);
    for (int64_t i = 0; i < budget_.iterations; ++i) {
      if (best_.tokens_per_s >= goal_ * (1 - kFlowTolerance)) break;
      if (i % kTimeCheckEvery == 0 && budget_.out_of_time && budget_.out_of_time()) break;
      if (i % kRecountEvery == 0) Recount();
      ++best_.iterations;
      Step(temperature.At(i) * cover_.target());
    }
    return best_;
  }

 private:
  static constexpr double kShortfallWeight = 0.3;  // per layer of the model

  double Shortfall() const { return kShortfallWeight * cover_.shortfall() / problem_.num_layers; }
  double Score() const { return flow_.value() - Shortfall(); }

  void Cover(std::span<const NodeMove> moves, bool from_placement) {
    for (const NodeMove& move : moves) {
      const LayerRange now = flow_.placement()[move.node];
      const double sign = from_placement ? 1 : -1;
      cover_.Add(now, -sign * RateOf(problem_, move.node, now));
      cover_.Add(move.range, sign * RateOf(problem_, move.node, move.range));
    }
  }

  void Step(double temperature) {
    const auto& moves = maker_.Propose(flow_.placement(), cover_);
    if (moves.empty()) return;
    // Draws the least accepted score first: most proposals then fail on the cover alone.
    const double least = Score() + temperature * std::log(std::max(rng_.Uniform(), 1e-300));
    Cover(moves, true);
    const double ceiling = cover_.Least();
    if (ceiling - Shortfall() < least) {
      Cover(moves, false);
      return;
    }
    flow_.Apply(moves, ceiling);
    if (Score() < least) {
      flow_.Undo();
      Cover(moves, false);
      return;
    }
    if (flow_.value() > best_.tokens_per_s * (1 + kFlowTolerance)) {
      best_.tokens_per_s = flow_.value();
      best_.placement = flow_.placement();
      NewTarget();
    }
  }

  void NewTarget() {
    cover_.SetTarget(std::min(std::max(best_.tokens_per_s, goal_ * 0.1) * budget_.raise, goal_));
    Recount();
  }

  void Recount() {
    flow_.Reset(Placement(flow_.placement()));
    FillCover(problem_, flow_.placement(), kTokenRateMax, cover_);
  }

  const FlowProblem& problem_;
  const double goal_;
  const SearchBudget& budget_;
  Rng rng_;
  MoveMaker maker_;
  IncrementalFlow flow_;
  LayerCover cover_;
  SearchResult best_;
};

}  // namespace

SearchResult SearchCover(const FlowProblem& problem, const Placement& start, double goal,
                         const SearchBudget& budget) {
  return CoverSearch(problem, start, goal, budget).Run();
}

SearchResult SearchFlow(const FlowProblem& problem, const Placement& start, double goal,
                        const SearchBudget& budget) {
  return FlowSearch(problem, start, goal, budget).Run();
}

}  // namespace millrace::plan
