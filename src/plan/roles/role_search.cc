#include "plan/roles/role_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "plan/roles/pool_placement.h"
#include "plan/roles/role_refine.h"

namespace millrace::plan {
namespace {

constexpr int kRoles = 3;
constexpr double kHotDivision = 0.05;  // of the best rate, at the start of an annealing
constexpr int kSplitsMax = 12;         // along one order of the classes
constexpr double kDescents = 0.25;     // share of the evaluations for the starts
constexpr int kProposals = 8;          // for each evaluation: small clusters have few divisions
constexpr int kDrawsMax = 16;          // until a move is found that changes something

// Requests per second. Divisions that keep the limits at no rate are rated below it, by what they
// would do with limits kRelaxed times as long.
constexpr double kMissedMost = 1e-6, kRelaxed = 1.5;

GoodputProblem Relaxed(GoodputProblem problem) {
  if (problem.ttft_s) *problem.ttft_s *= kRelaxed;
  if (problem.tpot_s) *problem.tpot_s *= kRelaxed;
  return problem;
}

// Interchangeable nodes, and how many of them have which role.
struct NodeClass {
  std::vector<int> nodes;
  double prefill = 0, decode = 0;  // requests per second of one node, in proportion
};
// By class, by role.
using Division = std::vector<std::array<int, kRoles>>;

int RoleIndex(StageRole role) { return static_cast<int>(role); }

class DivisionSearch {
 public:
  DivisionSearch(const RoleProblem& problem, const RoleSearchOptions& options)
      : problem_(problem),
        options_(options),
        relaxed_goodput_(Relaxed(*problem.goodput)),
        relaxed_(RolesOf(relaxed_goodput_)),
        placer_(problem),
        relaxed_placer_(relaxed_),
        rng_(options.seed) {
    FindClasses();
  }

  std::vector<RoleCandidate> Run() {
    Starts();
    if (CountDivisions() <= options_.evaluations - evaluations_) {
      Division division(classes_.size());
      TryAll(0, division);
    }
    // From the best ones and, every third time, from a random one.
    for (int round = 0; !Over() && !known_.empty(); ++round) {
      Anneal(round % 3 == 2 ? AnyDivision() : NthBest(static_cast<size_t>(round % 3)));
    }
    std::vector<RoleCandidate> out;
    uint64_t salt = 0;
    for (const auto& [rate, division] : Sorted()) {
      if (salt == static_cast<uint64_t>(options_.keep)) break;
      Finish(division, salt++, out);
    }
    std::ranges::stable_sort(out, [](const RoleCandidate& a, const RoleCandidate& b) {
      return a.estimate.requests_per_s > b.estimate.requests_per_s;
    });
    return out;
  }

 private:
  void FindClasses();
  void Starts();
  void StartAlong(const std::vector<int>& order);
  double CountDivisions() const;
  void TryAll(size_t first, Division& division);
  Division AnyDivision();
  void Anneal(const Division& start);
  bool Move(Division& division);
  double Rate(const Division& division);
  RolePlacement PlacementOf(const Division& division, PoolPlacer& placer) const;
  void Finish(const Division& division, uint64_t salt, std::vector<RoleCandidate>& out);

  bool Over() const {
    return evaluations_ >= options_.evaluations ||
           proposals_ >= int64_t{kProposals} * options_.evaluations ||
           (options_.stop && options_.stop());
  }
  static bool HasRoles(const Division& division) {
    int prefill = 0, decode = 0;
    for (const auto& counts : division) {
      prefill += counts[RoleIndex(StageRole::kPrefill)];
      decode += counts[RoleIndex(StageRole::kDecode)];
    }
    return prefill > 0 && decode > 0;
  }
  std::vector<std::pair<double, Division>> Sorted() const {
    std::vector<std::pair<double, Division>> sorted;
    for (const auto& [division, rate] : known_) {
      if (rate > kMissedMost) sorted.emplace_back(rate, division);
    }
    std::ranges::stable_sort(sorted,
                             [](const auto& a, const auto& b) { return a.first > b.first; });
    return sorted;
  }
  Division NthBest(size_t n) const {
    const auto sorted = Sorted();
    if (sorted.empty()) return known_.begin()->first;
    return sorted[std::min(n, sorted.size() - 1)].second;
  }

  const RoleProblem& problem_;
  const RoleSearchOptions& options_;
  // With longer limits, to tell bad divisions from worse ones.
  const GoodputProblem relaxed_goodput_;
  const RoleProblem relaxed_;
  PoolPlacer placer_, relaxed_placer_;
  Rng rng_;
  std::vector<NodeClass> classes_;
  std::map<Division, double> known_;
  int evaluations_ = 0;
  int64_t proposals_ = 0;
};

void DivisionSearch::FindClasses() {
  using Key = std::tuple<std::string, std::string, int, std::vector<double>, std::vector<double>>;
  std::map<Key, int> index;
  const FlowProblem& flow = problem_.goodput->flow;
  for (int i = 0; i < problem_.num_nodes(); ++i) {
    const FlowNode& node = flow.nodes[i];
    if (node.max_layers() == 0) continue;
    const Key key(node.kind, node.region, problem_.domain[i],
                  problem_.prefill.nodes[i].tokens_per_s, problem_.decode.nodes[i].tokens_per_s);
    const auto [it, added] = index.try_emplace(key, static_cast<int>(classes_.size()));
    if (added) {
      const auto k = static_cast<size_t>(node.max_layers());
      const double share = static_cast<double>(k) / flow.num_layers;
      classes_.push_back({.prefill = share * problem_.prefill.nodes[i].tokens_per_s[k - 1] /
                                     problem_.goodput->prompt_tokens,
                          .decode = share * problem_.decode.nodes[i].tokens_per_s[k - 1] /
                                    problem_.goodput->output_tokens});
    }
    classes_[static_cast<size_t>(it->second)].nodes.push_back(i);
  }
}

// Divisions that prefill with the first nodes in `order`, an order of the classes, and decode with
// the rest: the most balanced one, those around it, and some between the extremes.
void DivisionSearch::StartAlong(const std::vector<int>& order) {
  int nodes = 0;
  double decode = 0;
  for (const NodeClass& c : classes_) {
    nodes += static_cast<int>(c.nodes.size());
    decode += static_cast<double>(c.nodes.size()) * c.decode;
  }
  const auto split = [&](int prefills) {
    Division division(classes_.size());
    for (const int c : order) {
      const auto size = static_cast<int>(classes_[static_cast<size_t>(c)].nodes.size());
      const int taken = std::min(prefills, size);
      auto& counts = division[static_cast<size_t>(c)];
      counts[RoleIndex(StageRole::kPrefill)] = taken;
      counts[RoleIndex(StageRole::kDecode)] = size - taken;
      prefills -= taken;
    }
    return division;
  };
  int balanced = 0;
  double prefill = 0;
  for (const int c : order) {
    const NodeClass& it = classes_[static_cast<size_t>(c)];
    for (size_t i = 0; i < it.nodes.size() && prefill < decode; ++i) {
      prefill += it.prefill;
      decode -= it.decode;
      ++balanced;
    }
  }
  const double limit = kDescents * options_.evaluations;
  std::vector<int> splits = {balanced, balanced - 1, balanced + 1, balanced - 2, balanced + 2};
  const int step = std::max(1, nodes / kSplitsMax);
  for (int prefills = 1; prefills < nodes; prefills += step) splits.push_back(prefills);
  for (const int prefills : splits) {
    if (prefills >= 1 && prefills < nodes && evaluations_ < limit && !Over()) Rate(split(prefills));
  }
}

void DivisionSearch::Starts() {
  std::vector<int> order(classes_.size());
  std::iota(order.begin(), order.end(), 0);
  // DistServe's and Helix's advice: those that compute fast for their memory's speed prefill.
  std::ranges::stable_sort(order, [&](int a, int b) {
    const NodeClass& x = classes_[static_cast<size_t>(a)];
    const NodeClass& y = classes_[static_cast<size_t>(b)];
    return x.prefill * y.decode > y.prefill * x.decode;
  });
  StartAlong(order);
  std::ranges::stable_sort(order, [&](int a, int b) {
    return classes_[static_cast<size_t>(a)].prefill > classes_[static_cast<size_t>(b)].prefill;
  });
  StartAlong(order);
  std::ranges::reverse(order);
  StartAlong(order);
}

double DivisionSearch::CountDivisions() const {
  double count = 1;
  for (const NodeClass& c : classes_) {
    const auto n = static_cast<double>(c.nodes.size());
    count *= (n + 1) * (n + 2) / 2;
  }
  return count;
}

// Every division of the classes from `first` on.
void DivisionSearch::TryAll(size_t first, Division& division) {
  if (first == classes_.size()) {
    if (HasRoles(division) && !Over()) Rate(division);
    return;
  }
  const auto size = static_cast<int>(classes_[first].nodes.size());
  for (int prefill = 0; prefill <= size; ++prefill) {
    for (int decode = 0; prefill + decode <= size; ++decode) {
      auto& counts = division[first];
      counts[RoleIndex(StageRole::kPrefill)] = prefill;
      counts[RoleIndex(StageRole::kDecode)] = decode;
      counts[RoleIndex(StageRole::kBoth)] = size - prefill - decode;
      TryAll(first + 1, division);
    }
  }
}

Division DivisionSearch::AnyDivision() {
  Division division(classes_.size());
  for (size_t c = 0; c < classes_.size(); ++c) {
    for (size_t i = 0; i < classes_[c].nodes.size(); ++i) {
      ++division[c][static_cast<size_t>(rng_.Between(0, kRoles - 1))];
    }
  }
  return division;
}

// Some nodes of a class take another role; or the roles of nodes of two classes are exchanged.
bool DivisionSearch::Move(Division& division) {
  for (int draw = 0; draw < kDrawsMax; ++draw) {
    const auto c = static_cast<size_t>(rng_.Between(0, std::ssize(division) - 1));
    const auto from = static_cast<size_t>(rng_.Between(0, kRoles - 1));
    const auto to = static_cast<size_t>(rng_.Between(0, kRoles - 1));
    if (from == to || division[c][from] == 0) continue;
    const auto other = static_cast<size_t>(rng_.Between(0, std::ssize(division) - 1));
    const bool swap = rng_.Between(0, 2) == 0 && other != c && division[other][to] > 0;
    const int most = std::max(1, division[c][from] / (rng_.Between(0, 3) == 0 ? 1 : 2));
    const int count = swap ? 1 : static_cast<int>(rng_.Between(1, most));
    division[c][from] -= count;
    division[c][to] += count;
    if (swap) {
      --division[other][to];
      ++division[other][from];
    }
    return true;
  }
  return false;
}

void DivisionSearch::Anneal(const Division& start) {
  ++proposals_;
  if (!HasRoles(start)) return;
  Division now = start;
  double value = Rate(now), best = value;
  const int moves = std::max(8, options_.evaluations / 6);
  for (int i = 0; i < moves && !Over(); ++i, ++proposals_) {
    Division next = now;
    if (!Move(next) || !HasRoles(next)) continue;
    const double rate = Rate(next);
    const double heat = kHotDivision * best * (1 - static_cast<double>(i) / moves);
    if (rate < value && (heat <= 0 || rng_.Uniform() >= std::exp((rate - value) / heat))) continue;
    now = std::move(next);
    value = rate;
    best = std::max(best, value);
  }
}

double DivisionSearch::Rate(const Division& division) {
  const auto [it, added] = known_.try_emplace(division, 0);
  if (!added) return it->second;
  ++evaluations_;
  const RoleEstimate estimate = EstimateRoles(problem_, PlacementOf(division, placer_));
  if (HasPrefill(estimate)) return it->second = estimate.requests_per_s;
  const RoleEstimate relaxed = EstimateRoles(relaxed_, PlacementOf(division, relaxed_placer_));
  const double rate = HasPrefill(relaxed) ? relaxed.requests_per_s : 0;
  return it->second = kMissedMost * rate / (1 + rate);
}

RolePlacement DivisionSearch::PlacementOf(const Division& division, PoolPlacer& placer) const {
  RolePlacement out;
  const auto n = static_cast<size_t>(problem_.num_nodes());
  out.layers.resize(n);
  out.roles.assign(n, StageRole::kBoth);
  for (size_t c = 0; c < classes_.size(); ++c) {
    size_t next = 0;
    for (const StageRole role : {StageRole::kPrefill, StageRole::kDecode, StageRole::kBoth}) {
      for (int i = 0; i < division[c][static_cast<size_t>(RoleIndex(role))]; ++i) {
        out.roles[static_cast<size_t>(classes_[c].nodes[next++])] = role;
      }
    }
  }
  const auto place = [&](StageRole role, int domain) {
    std::vector<bool> members(n);
    bool any = false;
    for (size_t i = 0; i < n; ++i) {
      members[i] =
          out.roles[i] == role && (role == StageRole::kBoth || problem_.domain[i] == domain);
      any = any || members[i];
    }
    if (!any) return;
    const Placement& pool = placer.Place(role, members);
    for (size_t i = 0; i < n; ++i) {
      if (members[i]) out.layers[i] = pool[i];
    }
  };
  for (int domain = 0; domain < problem_.num_domains; ++domain) {
    place(StageRole::kPrefill, domain);
    place(StageRole::kDecode, domain);
  }
  place(StageRole::kBoth, 0);
  return out;
}

// Adds the division with the layers of each pool searched further, and what becomes of it when
// single nodes move.
void DivisionSearch::Finish(const Division& division, uint64_t salt,
                            std::vector<RoleCandidate>& out) {
  RolePlacement placement = PlacementOf(division, placer_);
  RoleCandidate best{placement, EstimateRoles(problem_, placement)};
  for (const StageRole role : {StageRole::kPrefill, StageRole::kDecode, StageRole::kBoth}) {
    for (int domain = 0; domain < problem_.num_domains; ++domain) {
      if (options_.stop && options_.stop()) break;
      if (role == StageRole::kBoth && domain > 0) continue;
      std::vector<bool> members(placement.roles.size());
      Placement pool(placement.roles.size());
      for (size_t i = 0; i < members.size(); ++i) {
        members[i] = placement.roles[i] == role &&
                     (role == StageRole::kBoth || problem_.domain[i] == domain);
        if (members[i]) pool[i] = best.placement.layers[i];
      }
      if (std::ranges::all_of(pool, [](const LayerRange& r) { return r.size() == 0; })) continue;
      pool = placer_.Improve(role, members, pool, options_.pool_iterations, options_.seed + salt,
                             options_.stop);
      RoleCandidate next = best;
      for (size_t i = 0; i < members.size(); ++i) {
        if (members[i]) next.placement.layers[i] = pool[i];
      }
      next.estimate = EstimateRoles(problem_, next.placement);
      if (next.estimate.requests_per_s > best.estimate.requests_per_s) best = std::move(next);
    }
  }
  out.push_back(best);
  RefineRoles(problem_, options_.joint_iterations, options_.seed + salt, options_.stop, best);
  if (best.placement != out.back().placement) out.push_back(std::move(best));
}

}  // namespace

std::vector<RoleCandidate> SearchRoles(const RoleProblem& problem,
                                       const RoleSearchOptions& options) {
  return DivisionSearch(problem, options).Run();
}

}  // namespace millrace::plan
