// Compares the planner with every possible placement on small random clusters.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/testing/test_scale.h"
#include "plan/flow/check.h"
#include "plan/flow/planner.h"
#include "plan/flow/testing_problems.h"

namespace millrace::plan {
namespace {

constexpr double kPlacementsMax = 30'000;  // per problem

std::vector<LayerRange> Ranges(const FlowProblem& problem, int node) {
  std::vector<LayerRange> ranges = {{}};
  for (int k = 1; k <= problem.nodes[node].max_layers(); ++k) {
    for (int b = 0; b + k <= problem.num_layers; ++b) ranges.push_back({b, b + k});
  }
  return ranges;
}

class BruteForce {
 public:
  // If links do not bind, alike nodes are tried in one order only.
  BruteForce(const FlowProblem& problem, bool alike) : problem_(problem), alike_(alike) {
    for (int i = 0; i < problem.num_nodes(); ++i) ranges_.push_back(Ranges(problem, i));
  }
  double Placements() const {
    double count = 1;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      // Multisets: each further alike node multiplies the count by less.
      int before = 0;
      for (size_t j = 0; j < i; ++j) before += Alike(i, j);
      count *= (static_cast<double>(ranges_[i].size()) + before) / (before + 1.0);
    }
    return count;
  }
  double Best() {
    Try(std::vector<size_t>(ranges_.size(), 0), 0);
    return best_;
  }

 private:
  bool Alike(size_t a, size_t b) const {
    return alike_ && problem_.nodes[a].kind == problem_.nodes[b].kind;
  }
  void Try(std::vector<size_t> choice, size_t node) {
    if (node == ranges_.size()) {
      Plan plan;
      plan.partial_inference = problem_.partial_inference;
      for (size_t i = 0; i < choice.size(); ++i) {
        if (choice[i] == 0) continue;
        plan.stages.push_back({.nodes = {static_cast<int>(i)}, .layers = ranges_[i][choice[i]]});
      }
      best_ = std::max(best_, RecomputeFlow(problem_, plan));
      return;
    }
    size_t first = 0;
    for (size_t j = 0; j < node; ++j) {
      if (Alike(node, j)) first = std::max(first, choice[j]);
    }
    for (size_t c = first; c < ranges_[node].size(); ++c) {
      choice[node] = c;
      Try(choice, node + 1);
    }
  }

  const FlowProblem& problem_;
  bool alike_;
  std::vector<std::vector<LayerRange>> ranges_;
  double best_ = 0;
};

void CompareOn(double link_tokens_per_s, int problems) {
  int compared = 0, largest = 0;
  for (uint64_t seed = 0; compared < problems; ++seed) {
    ASSERT_LT(seed, 100'000u) << "too few problems are small enough";
    const FlowProblem problem = RandomProblem(seed, {.link_tokens_per_s = link_tokens_per_s});
    if (!ValidateFlowProblem(problem).ok()) continue;
    BruteForce brute(problem, link_tokens_per_s == 0);
    if (brute.Placements() > kPlacementsMax) continue;
    ++compared;
    largest = std::max(largest, problem.num_nodes() * problem.num_layers);
    const double best = brute.Best();
    const auto outcome = PlanByFlow(problem, {.iterations = 500'000});
    if (best <= kFlowMin) {
      ASSERT_FALSE(outcome.ok()) << "seed " << seed;
      continue;
    }
    ASSERT_TRUE(outcome.ok()) << "seed " << seed << ": " << outcome.status().ToString();
    ASSERT_NEAR(outcome->flow.tokens_per_s, best, best * 1e-6) << "seed " << seed;
    ASSERT_GE(outcome->bound, best * (1 - 1e-9)) << "seed " << seed;
    ASSERT_TRUE(link_tokens_per_s > 0 || outcome->proved_optimal())
        << "seed " << seed << ": " << outcome->bound << " over " << best << ", partial "
        << problem.partial_inference;
  }
  EXPECT_GE(largest, 24) << "the problems compared were all tiny";
}

TEST(BruteForce, PlannerFindsAndProvesTheOptimumWithoutLinks) { CompareOn(0, 40 * TestScale()); }
TEST(BruteForce, PlannerFindsTheOptimumWithLinks) { CompareOn(300, 30 * TestScale()); }

TEST(Planner, SameSeedSamePlan) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const FlowProblem problem = RandomProblem(
        seed, {.nodes_max = 8, .layers_max = 10, .link_tokens_per_s = seed % 2 ? 200.0 : 0.0});
    if (!ValidateFlowProblem(problem).ok()) continue;
    const auto a = PlanByFlow(problem, {.seed = seed, .iterations = 30'000});
    const auto b = PlanByFlow(problem, {.seed = seed, .iterations = 30'000});
    ASSERT_EQ(a.ok(), b.ok());
    if (!a.ok()) continue;
    ASSERT_EQ(a->placement, b->placement);
  }
}

}  // namespace
}  // namespace millrace::plan
