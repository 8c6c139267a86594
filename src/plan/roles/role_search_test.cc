// Compares the search with every division and every placement of small clusters.
#include "plan/roles/role_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "plan/flow/check.h"
#include "plan/roles/role_plan.h"
#include "plan/roles/testing_roles.h"

namespace millrace::plan {
namespace {

std::vector<LayerRange> RangesOf(const FlowProblem& problem, int node) {
  std::vector<LayerRange> ranges = {{}};
  for (int k = 1; k <= problem.nodes[node].max_layers(); ++k) {
    for (int begin = 0; begin + k <= problem.num_layers; ++begin)
      ranges.push_back({begin, begin + k});
  }
  return ranges;
}

bool Covers(const Placement& placement, int num_layers) {
  int covered = 0;
  for (int round = 0; round < num_layers && covered < num_layers; ++round) {
    for (const LayerRange& r : placement) {
      if (r.begin <= covered) covered = std::max(covered, r.end);
    }
  }
  return covered == num_layers;
}

// Calls `visit` with every placement of the members that covers the model. Neighbours of one kind
// are interchangeable: only one of the orders of their ranges is visited.
template <typename Visit>
void EveryPlacement(const FlowProblem& problem, const std::vector<int>& members, size_t next,
                    size_t first_range, Placement& placement, const Visit& visit) {
  if (next == members.size()) {
    if (Covers(placement, problem.num_layers)) visit(placement);
    return;
  }
  const auto node = static_cast<size_t>(members[next]);
  const std::vector<LayerRange> ranges = RangesOf(problem, members[next]);
  const bool alike =
      next + 1 < members.size() &&
      problem.nodes[static_cast<size_t>(members[next + 1])].kind == problem.nodes[node].kind;
  for (size_t r = first_range; r < ranges.size(); ++r) {
    placement[node] = ranges[r];
    EveryPlacement(problem, members, next + 1, alike ? r : 0, placement, visit);
  }
  placement[node] = {};
}

// The best rate of every pool, by role and members, when KV moves for free. Pools with as many
// nodes of each kind are alike.
class BestPools {
 public:
  explicit BestPools(const RoleProblem& problem) : problem_(problem) {}

  double Of(StageRole role, const std::vector<int>& members) {
    std::string kinds(1, static_cast<char>('0' + static_cast<int>(role)));
    const auto& nodes = problem_.goodput->flow.nodes;
    std::vector<int> sorted = members;
    std::ranges::stable_sort(sorted, {}, [&](int i) { return nodes[static_cast<size_t>(i)].kind; });
    for (int i : sorted) kinds += nodes[static_cast<size_t>(i)].kind;
    if (const auto found = known_.find(kinds); found != known_.end()) return found->second;
    double& best = known_[kinds];
    Placement placement(static_cast<size_t>(problem_.num_nodes()));
    EveryPlacement(problem_.goodput->flow, sorted, 0, 0, placement, [&](const Placement& p) {
      const double rate = role == StageRole::kPrefill  ? PrefillAlone(problem_, p)
                          : role == StageRole::kDecode ? DecodeAlone(problem_, p)
                                                       : Together(p);
      best = std::max(best, rate);
    });
    return best;
  }

 private:
  double Together(const Placement& p) const { return EstimateTogether(problem_, p).requests_per_s; }

  const RoleProblem& problem_;
  std::map<std::string, double> known_;
};

double BestByBruteForce(const RoleProblem& problem) {
  BestPools pools(problem);
  int divisions = 1;
  for (int i = 0; i < problem.num_nodes(); ++i) divisions *= 3;
  double best = 0;
  for (int d = 0; d < divisions; ++d) {
    std::vector<int> members[3];
    for (int i = 0, rest = d; i < problem.num_nodes(); ++i, rest /= 3) {
      members[rest % 3].push_back(i);
    }
    if (members[1].empty() || members[2].empty()) continue;
    const double apart = std::min(pools.Of(StageRole::kPrefill, members[1]),
                                  pools.Of(StageRole::kDecode, members[2]));
    if (apart <= 0) continue;
    best = std::max(best, apart + pools.Of(StageRole::kBoth, members[0]));
  }
  return best;
}

// Five nodes and six layers. The search may not find more than there is, nor less than 99 % of it.
TEST(RoleSearch, FindsWhatBruteForceFinds) {
  int with_roles = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    GoodputProblem goodput = RoleTestProblem(6, RandomTestNodes(seed, 5, 4), 1e9, 0);
    goodput.ttft_s = 0.5;
    goodput.tpot_s = 0.05;
    const RoleProblem problem = RolesOf(goodput);
    const double best = BestByBruteForce(problem);
    const auto found = SearchRoles(problem, {.seed = seed});
    if (best <= 0) {
      EXPECT_TRUE(found.empty()) << seed;
      continue;
    }
    ++with_roles;
    ASSERT_FALSE(found.empty()) << "seed " << seed << " has " << best;
    EXPECT_LE(found.front().estimate.requests_per_s, best * (1 + 1e-6)) << seed;
    EXPECT_GE(found.front().estimate.requests_per_s, best * 0.99) << seed;
  }
  EXPECT_GE(with_roles, 6);
}

// Four nodes and three layers over links that the KV fills: every role and every range.
TEST(RoleSearch, FindsWhatBruteForceFindsOverThinLinks) {
  for (uint64_t seed = 11; seed <= 18; ++seed) {
    GoodputProblem goodput = RoleTestProblem(3, RandomTestNodes(seed, 4, 3), 40'000, 4);
    goodput.ttft_s = 0.5;
    goodput.tpot_s = 0.05;
    const RoleProblem problem = RolesOf(goodput);
    RolePlacement placement{Placement(4), std::vector<StageRole>(4)};
    double best = 0;
    for (int d = 0; d < 81; ++d) {
      for (int i = 0, rest = d; i < 4; ++i, rest /= 3) {
        placement.roles[static_cast<size_t>(i)] = static_cast<StageRole>(rest % 3);
      }
      const auto has = [&](StageRole role) {
        return std::ranges::find(placement.roles, role) != placement.roles.end();
      };
      if (!has(StageRole::kPrefill) || !has(StageRole::kDecode)) continue;
      EveryPlacement(goodput.flow, {0, 1, 2, 3}, 0, 0, placement.layers, [&](const Placement&) {
        const RoleEstimate estimate = EstimateRoles(problem, placement);
        if (estimate.requests_per_s <= best) return;
        const bool apart = std::ranges::any_of(
            estimate.units, [](const RoleUnit& unit) { return !unit.prefill.stages.empty(); });
        if (apart) best = estimate.requests_per_s;
      });
    }
    const auto found = SearchRoles(problem, {.seed = seed});
    ASSERT_GT(best, 0) << seed;
    ASSERT_FALSE(found.empty()) << seed;
    EXPECT_LE(found.front().estimate.requests_per_s, best * (1 + 1e-6)) << seed;
    EXPECT_GE(found.front().estimate.requests_per_s, best * 0.99) << seed;
  }
}

TEST(RoleSearch, IsAFunctionOfItsArguments) {
  GoodputProblem goodput = RoleTestProblem(6, RandomTestNodes(5, 8, 6), 1e6, 2);
  goodput.ttft_s = 1;
  goodput.tpot_s = 0.1;
  const RoleProblem problem = RolesOf(goodput);
  const RoleSearchOptions options{.seed = 3, .evaluations = 100, .pool_iterations = 200};
  const auto a = SearchRoles(problem, options), b = SearchRoles(problem, options);
  ASSERT_FALSE(a.empty());
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].placement, b[i].placement);
    EXPECT_EQ(a[i].estimate.requests_per_s, b[i].estimate.requests_per_s);
  }
}

// Fast computers prefill and fast memories decode; KV stays inside its group.
TEST(RoleSearch, DividesByWhatNodesAreGoodAt) {
  const TestNode computes{.kind = "c", .max_layers = 4, .prompt_s = 2e-6, .step_s = 4e-3};
  const TestNode reads{.kind = "r", .max_layers = 4, .prompt_s = 4e-5, .step_s = 5e-4};
  GoodputProblem goodput = RoleTestProblem(4, {reads, computes, reads, computes}, 1e8, 2);
  goodput.ttft_s = 1;
  goodput.tpot_s = 0.02;
  const auto found = SearchRoles(RolesOf(goodput), {});
  ASSERT_FALSE(found.empty());
  const std::vector<StageRole>& roles = found.front().placement.roles;
  for (const size_t i : {0, 2}) EXPECT_EQ(roles[i], StageRole::kDecode);
  for (const size_t i : {1, 3}) EXPECT_EQ(roles[i], StageRole::kPrefill);
  // Groups of alike nodes: a hand-over stays among them.
  goodput.kv_reach = {1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1};
  const RoleProblem groups = RolesOf(goodput);
  EXPECT_EQ(groups.num_domains, 2);
  const auto grouped = SearchRoles(groups, {});
  ASSERT_FALSE(grouped.empty());
  for (const RoleCandidate& c : grouped) {
    const Plan plan = MakeRolePlan(groups, c.placement, c.estimate, RoleBound(goodput));
    CheckOptions check{.prompt_tokens = 800, .output_tokens = 100};
    check.kv_affinity = {{0, 2}, {1, 3}};
    const auto violations = CheckPlan(goodput.flow, plan, check);
    EXPECT_TRUE(violations.empty()) << violations.front();
  }
}

TEST(RoleSearch, NoPairOfPoolsNoPlan) {
  // Each node holds the model, and no KV may move.
  GoodputProblem goodput =
      RoleTestProblem(2, {{.kind = "a", .max_layers = 2}, {.kind = "a", .max_layers = 2}}, 1e8, 2);
  goodput.kv_reach = {1, 0, 0, 1};
  EXPECT_TRUE(SearchRoles(RolesOf(goodput), {}).empty());
  goodput.kv_reach.clear();
  EXPECT_FALSE(SearchRoles(RolesOf(goodput), {}).empty());
  goodput.ttft_s = 1e-6;
  EXPECT_TRUE(SearchRoles(RolesOf(goodput), {}).empty());
}

}  // namespace
}  // namespace millrace::plan
