#include "plan/rank_plans.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "plan/flow/flow_bounds.h"
#include "plan/flow/planner.h"
#include "plan/roles/after_loss.h"
#include "plan/roles/node_parts.h"
#include "plan/roles/pool_placement.h"
#include "plan/roles/role_plan.h"
#include "plan/roles/role_refine.h"

namespace millrace::plan {
namespace {

// Fractions of the time limit at whose end a search stops.
constexpr double kColocatedSearch = 0.2, kRoleSearch = 0.45;
constexpr size_t kWithoutRoles = 2;  // candidates made of those with roles
constexpr size_t kOfEachKind = 3;    // plans with roles and without that are judged in turn
constexpr uint64_t kRestartSeed = 7919;
constexpr int kTopLeast = 3;  // candidates, with little effort

// Whether as many nodes of each kind do the same in both plans. Flows may differ.
bool SameStages(const FlowProblem& problem, const Plan& a, const Plan& b) {
  const auto key = [&](const Plan& plan) {
    std::vector<std::tuple<std::string, LayerRange, StageRole, int>> stages;
    for (const StagePlan& s : plan.stages) {
      stages.emplace_back(NodeLabel(problem, s.nodes.front()), s.layers, s.role, s.tensor_parallel);
    }
    std::ranges::sort(stages);
    return stages;
  };
  return key(a) == key(b);
}

// How many pipelines of each role a plan has. Plans of one shape err alike in the estimates.
using Shape = std::array<int, 3>;
Shape ShapeOf(const Plan& plan) {
  Shape shape{};
  for (const StagePlan& s : plan.stages) {
    if (s.layers.end == plan.num_layers) ++shape[static_cast<size_t>(s.role)];
  }
  return shape;
}

// The best of each shape first, then the others; each in the order that they have.
void DifferentShapesFirst(std::vector<PlanCandidate>& candidates) {
  std::set<Shape> seen;
  std::vector<PlanCandidate> first, rest;
  for (PlanCandidate& c : candidates) {
    (seen.insert(ShapeOf(c.plan)).second ? first : rest).push_back(std::move(c));
  }
  candidates = std::move(first);
  std::ranges::move(rest, std::back_inserter(candidates));
}

class PlanRanking {
 public:
  PlanRanking(const GoodputProblem& problem, const RankOptions& options)
      : problem_(problem), options_(options) {
    if (options.clock != nullptr) start_ = options.clock->Now();
  }

  Result<std::vector<PlanCandidate>> Run(const Evaluator& evaluator) {
    const Status colocated = AddColocated(evaluator ? kColocatedSearch : 0.5);
    // Invalid input is an error; limits that no placement without roles keeps are not.
    if (colocated.code() == StatusCode::kInvalidArgument) return colocated;
    AddRoles(evaluator ? kRoleSearch : 1);
    for (const PlanCandidate& other : options_.others) AddOther(other);
    if (all_.empty()) return colocated;
    std::vector<PlanCandidate> top = Top();
    if (evaluator) {
      Judge(evaluator, top, 0);
      for (int round = 0; round < options_.restarts && !Past(1); ++round) {
        if (!AddNearBest(round, top)) continue;
        Judge(evaluator, top, top.size() - 1);
      }
    } else {
      std::ranges::stable_sort(top, [](const PlanCandidate& a, const PlanCandidate& b) {
        return a.estimate.requests_per_s > b.estimate.requests_per_s;
      });
    }
    return top;
  }

 private:
  double Elapsed() const {
    return options_.clock == nullptr ? 0 : (options_.clock->Now() - start_).seconds();
  }
  bool Past(double share) const {
    return options_.clock != nullptr && options_.time_limit_s &&
           Elapsed() >= share * *options_.time_limit_s;
  }
  void Tell(const char* doing, double requests_per_s) const {
    if (options_.progress) options_.progress({doing, requests_per_s, Elapsed()});
  }

  Status AddColocated(double share) {
    CandidateOptions search = options_.colocated;
    search.seed = options_.seed;
    search.top = options_.top;
    search.clock = options_.clock;
    if (options_.time_limit_s) search.time_limit_s = share * *options_.time_limit_s;
    search.progress = options_.progress;
    auto found = RankByGoodput(problem_, search);
    if (!found.ok()) return found.status();
    const double bound = Bound();
    const RoleProblem roles = RolesOf(problem_);
    for (Candidate& c : *found) {
      PlanCandidate& added = all_.emplace_back();
      added.plan = MakePlan(problem_.flow, c.placement, c.flow, bound);
      added.estimate = TogetherOf(roles, c.placement, c.flow, std::move(c.estimate));
      added.method = std::move(c.method);
      added.single_machine = added.plan.stages.size() == 1;
    }
    return OkStatus();
  }

  void AddRoles(double share) {
    const RoleProblem problem = RolesOf(problem_);
    RoleSearchOptions search = options_.roles;
    search.seed = options_.seed;
    search.stop = [this, share] { return Past(share); };
    Tell("dividing prefill and decode", BestEstimate());
    const std::vector<RoleCandidate> found = SearchRoles(problem, search);
    AddWithoutRoles(problem, found, search);
    for (const RoleCandidate& c : found) {
      all_.push_back(WithRoles(problem, c));
      all_.back().method = "separate prefill and decode";
    }
    Tell("dividing prefill and decode", BestEstimate());
  }

  // The estimate of another search knows of no loss.
  void AddOther(const PlanCandidate& other) {
    PlanCandidate& added = all_.emplace_back(other);
    added.plan.tokens_per_s_bound = std::max(Bound(), added.plan.tokens_per_s);
    const std::vector<AfterLoss> losses = PlansAfterLoss(problem_, added.plan);
    if (losses.empty()) return;
    const GoodputEstimate& worst = losses.front().estimate;
    if (worst.requests_per_s < added.estimate.requests_per_s) added.estimate = worst;
  }

  // As the plans with roles are estimated, so that both can be compared. Where no rate keeps the
  // tighter limits, with the limits themselves, and at last `by_means`: the simulator decides.
  GoodputEstimate TogetherOf(const RoleProblem& problem, const Placement& layers,
                             const PlacementFlow& flow, GoodputEstimate by_means) const {
    GoodputEstimate found = problem_.losable.empty() ? EstimateTogether(problem, layers, flow.edges)
                                                     : EstimateTogether(problem, layers);
    if (found.requests_per_s > 0) return found;
    RoleProblem loose = problem;
    loose.both.ttft_s = problem_.ttft_s;
    loose.both.tpot_s = problem_.tpot_s;
    found = EstimateTogether(loose, layers, flow.edges);
    return found.requests_per_s > 0 ? found : std::move(by_means);
  }

  // The layers of the best divisions, with every stage doing both, and searched further: pools are
  // short pipelines, which keep limits that longer ones miss.
  void AddWithoutRoles(const RoleProblem& problem, const std::vector<RoleCandidate>& found,
                       const RoleSearchOptions& search) {
    const PoolPlacer placer(problem);
    const std::vector<bool> all(static_cast<size_t>(problem_.flow.num_nodes()), true);
    for (size_t i = 0; i < std::min(found.size(), kWithoutRoles); ++i) {
      auto added =
          WithoutRoles(problem, placer.Improve(StageRole::kBoth, all, found[i].placement.layers,
                                               search.joint_iterations, search.seed, search.stop));
      if (!added) continue;
      added->method = "pools that do both";
      all_.push_back(std::move(*added));
    }
  }

  // A candidate whose stages all do both. None: it keeps the limits at no rate.
  std::optional<PlanCandidate> WithoutRoles(const RoleProblem& problem,
                                            const Placement& layers) const {
    PlanCandidate out;
    const PlacementFlow flow = options_.colocated.route ? options_.colocated.route(layers)
                                                        : SolvePlacementFlow(problem_.flow, layers);
    out.estimate = TogetherOf(problem, layers, flow, EstimateGoodput(problem_, layers));
    if (out.estimate.requests_per_s <= 0) return std::nullopt;
    out.plan = MakePlan(problem_.flow, layers, flow, Bound());
    return out;
  }

  PlanCandidate WithRoles(const RoleProblem& problem, const RoleCandidate& found) const {
    PlanCandidate out;
    out.plan = MakeRolePlan(problem, found.placement, found.estimate, Bound());
    out.estimate = SummaryOf(found.estimate);
    out.roles = true;
    return out;
  }

  double Bound() const { return std::max(SelfConsistentBound(problem_.flow), RoleBound(problem_)); }
  double BestEstimate() const {
    double best = 0;
    for (const PlanCandidate& c : all_) best = std::max(best, c.estimate.requests_per_s);
    return best;
  }

  // The single machine, so that no worse plan is chosen; then the first plans with and without
  // roles in turn: the time may not suffice for all. Then the others by their estimates. The best
  // of the other searches come right after the best of this one: their estimates are not
  // comparable.
  std::vector<PlanCandidate> Top() {
    std::vector<PlanCandidate> top, with, without;
    Promote();
    std::vector<PlanCandidate> different;
    for (PlanCandidate& c : all_) {
      const bool known = std::ranges::any_of(different, [&](const PlanCandidate& other) {
        return SameStages(problem_.flow, c.plan, other.plan);
      });
      if (!known) different.push_back(std::move(c));
    }
    for (PlanCandidate& c : different) {
      auto& list = c.single_machine && top.empty() ? top : c.roles ? with : without;
      list.push_back(std::move(c));
    }
    DifferentShapesFirst(with);
    DifferentShapesFirst(without);
    std::vector<PlanCandidate> rest;
    for (size_t i = 0; i < std::max(with.size(), without.size()); ++i) {
      auto& list = i < kOfEachKind ? top : rest;
      if (i < with.size()) list.push_back(std::move(with[i]));
      if (i < without.size()) list.push_back(std::move(without[i]));
    }
    std::ranges::stable_sort(rest, std::ranges::greater(),
                             [](const PlanCandidate& c) { return c.estimate.requests_per_s; });
    std::ranges::move(rest, std::back_inserter(top));
    if (std::ssize(top) > options_.top) top.resize(static_cast<size_t>(options_.top));
    return top;
  }

  // Moves the candidates of the other searches, which are last, behind the first with roles and the
  // first without.
  void Promote() {
    const auto others = static_cast<std::ptrdiff_t>(options_.others.size());
    const auto own_end = all_.end() - others;
    for (const bool roles : {false, true}) {
      const auto is = [&](const PlanCandidate& c) { return c.roles == roles && !c.single_machine; };
      const auto first = std::find_if(all_.begin(), own_end, is);
      if (first != own_end) std::rotate(all_.begin(), first, first + 1);
    }
    const auto firsts = all_.begin() + std::min<std::ptrdiff_t>(2, own_end - all_.begin());
    std::rotate(firsts, all_.end() - others, all_.end());
  }

  // Scores the candidates from `first` on and sorts all.
  void Judge(const Evaluator& evaluator, std::vector<PlanCandidate>& candidates,
             size_t first) const {
    double best[2] = {0, 0};  // without and with roles
    JudgeHints hints;
    for (const PlanCandidate& c : candidates) {
      hints.most_estimated = std::max(hints.most_estimated, c.estimate.requests_per_s);
      double& so_far = best[c.roles ? 1 : 0];
      so_far = std::max(so_far, c.score.value_or(0));
    }
    for (size_t i = first; i < candidates.size() && !Past(1); ++i) {
      PlanCandidate& c = candidates[i];
      hints.best_score = best[c.roles ? 1 : 0];
      hints.best_of_all = std::max(best[0], best[1]);
      hints.estimated = c.estimate.requests_per_s;
      hints.stay_s = c.estimate.residence_s;
      const auto score = evaluator(c.plan, hints);
      if (!score.ok()) continue;
      c.score = *score;
      best[c.roles ? 1 : 0] = std::max(hints.best_score, *score);
      Tell("judging", std::max(best[0], best[1]));
    }
    std::ranges::stable_sort(candidates, [](const PlanCandidate& a, const PlanCandidate& b) {
      if (a.score.has_value() != b.score.has_value()) return a.score.has_value();
      if (a.score) return *a.score > *b.score;
      return a.estimate.requests_per_s > b.estimate.requests_per_s;
    });
  }

  // Searches on from the best plan with a score: plans near it err alike in the estimates. False:
  // there is no such plan, a node of it has several stages, which this search does not move, or
  // nothing better was found near it.
  bool AddNearBest(int round, std::vector<PlanCandidate>& judged) {
    const PlanCandidate& best = judged.front();
    const NodeParts parts(problem_.flow, best.plan);
    if (!best.score || parts.divided()) return false;
    const RoleProblem problem = RolesOf(problem_);
    const RolePlacement placement = parts.Placed();
    RoleSearchOptions search = options_.roles;
    search.stop = [this] { return Past(1); };
    const uint64_t seed = options_.seed + kRestartSeed * (static_cast<uint64_t>(round) + 1);
    std::optional<PlanCandidate> found;
    if (best.roles) {
      RoleCandidate near{placement, EstimateRoles(problem, placement)};
      RefineRoles(problem, search.joint_iterations, seed, search.stop, near);
      found = WithRoles(problem, near);
    } else {
      const PoolPlacer placer(problem);
      const std::vector<bool> all(static_cast<size_t>(problem_.flow.num_nodes()), true);
      found = WithoutRoles(problem, placer.Improve(StageRole::kBoth, all, placement.layers,
                                                   search.joint_iterations, seed, search.stop));
    }
    const auto same = [&](const PlanCandidate& c) {
      return SameStages(problem_.flow, c.plan, found->plan);
    };
    if (!found || std::ranges::any_of(judged, same)) return false;
    found->method = best.method + ", searched on from the best";
    judged.push_back(std::move(*found));
    return true;
  }

  const GoodputProblem& problem_;
  const RankOptions& options_;
  Time start_;
  std::vector<PlanCandidate> all_;
};

}  // namespace

RankOptions OptionsFor(int nodes, double effort) {
  constexpr double kNodes = 20;  // up to as many, the defaults apply
  RankOptions options;
  // Estimates take time in proportion to the nodes, and there are more nodes to move.
  const double scale = std::min(1.0, kNodes / nodes), square = scale * scale;
  const auto scaled = [](auto count, double by) {
    return std::max<decltype(count)>(1, static_cast<decltype(count)>(count * by));
  };
  CandidateOptions& colocated = options.colocated;
  colocated.flow_iterations = scaled(colocated.flow_iterations, square);
  colocated.goodput_iterations = scaled(colocated.goodput_iterations, square);
  colocated.rounds_iterations = scaled(colocated.rounds_iterations, square);
  RoleSearchOptions& roles = options.roles;
  // The divisions of many kinds of nodes are many, and few of them keep the limits.
  roles.evaluations = static_cast<int>(roles.evaluations * std::max(1.0, nodes / kNodes * 4));
  roles.pool_iterations = scaled(roles.pool_iterations, square);
  roles.joint_iterations = static_cast<int>(roles.joint_iterations * std::max(1.0, nodes / kNodes));
  if (effort >= 1) return options;
  for (int64_t* count :
       {&colocated.flow_iterations, &colocated.goodput_iterations, &colocated.rounds_iterations}) {
    *count = scaled(*count, effort);
  }
  for (int* count : {&roles.evaluations, &roles.pool_iterations, &roles.joint_iterations}) {
    *count = scaled(*count, effort);
  }
  options.top = std::max(kTopLeast, scaled(options.top, effort));
  options.restarts = static_cast<int>(options.restarts * effort);
  return options;
}

bool HasRoles(const Plan& plan) {
  return std::ranges::any_of(plan.stages,
                             [](const StagePlan& s) { return s.role != StageRole::kBoth; });
}

Result<std::vector<PlanCandidate>> RankPlans(const GoodputProblem& problem,
                                             const RankOptions& options,
                                             const Evaluator& evaluator) {
  return PlanRanking(problem, options).Run(evaluator);
}

}  // namespace millrace::plan
