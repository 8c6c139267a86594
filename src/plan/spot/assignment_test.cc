// Compares the matching with every permutation, and measures its speed.
#include "plan/spot/assignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>

#include "base/rng.h"

namespace millrace::plan::spot {
namespace {

int64_t Total(const std::vector<std::optional<int>>& assigned, int columns,
              const std::vector<int64_t>& weights) {
  int64_t total = 0;
  std::set<int> seen;
  for (size_t row = 0; row < assigned.size(); ++row) {
    if (!assigned[row].has_value()) continue;
    EXPECT_TRUE(seen.insert(*assigned[row]).second) << "a column taken twice";
    total += weights[row * columns + *assigned[row]];
  }
  return total;
}

int64_t BestOfAllPermutations(int rows, int columns, const std::vector<int64_t>& weights) {
  const int n = std::max(rows, columns);
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  int64_t best = 0;
  do {
    int64_t total = 0;
    for (int row = 0; row < rows; ++row) {
      if (order[row] < columns) total += weights[row * columns + order[row]];
    }
    best = std::max(best, total);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(AssignmentTest, EqualsEveryPermutation) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Rng rng(seed);
    const int rows = static_cast<int>(rng.Between(1, seed < 20 ? 8 : 6));
    const int columns = static_cast<int>(rng.Between(1, seed < 20 ? 8 : 6));
    const int64_t greatest = seed % 3 == 0 ? 3 : seed % 3 == 1 ? 1000 : kAssignmentWeightMax;
    std::vector<int64_t> weights(rows * columns);
    for (int64_t& w : weights) w = rng.Between(0, greatest);
    const auto assigned = AssignMaxWeight(rows, columns, weights);
    const auto matched = std::count_if(assigned.begin(), assigned.end(),
                                       [](const auto& column) { return column.has_value(); });
    ASSERT_EQ(matched, std::min(rows, columns)) << seed;
    ASSERT_EQ(Total(assigned, columns, weights), BestOfAllPermutations(rows, columns, weights))
        << seed;
  }
}

TEST(AssignmentTest, EmptySides) {
  EXPECT_TRUE(AssignMaxWeight(0, 3, {}).empty());
  EXPECT_EQ(AssignMaxWeight(2, 0, {}), std::vector<std::optional<int>>(2));
}

TEST(AssignmentTest, TwoHundredFiftySixUnderASecond) {
  Rng rng(7);
  constexpr int kSide = 256;
  std::vector<int64_t> weights(kSide * kSide);
  for (int64_t& w : weights) w = rng.Between(0, int64_t{1} << 50);
  const auto start = std::chrono::steady_clock::now();
  const auto assigned = AssignMaxWeight(kSide, kSide, weights);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_GT(Total(assigned, kSide, weights), (int64_t{1} << 50) * 240);
#ifndef MILLRACE_SANITIZED
  EXPECT_LT(took.count(), 1);
#endif
}

}  // namespace
}  // namespace millrace::plan::spot
