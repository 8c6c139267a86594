#include "plan/flow/max_flow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "base/testing/test_scale.h"

namespace millrace::plan {
namespace {

struct Edge {
  int from, to;
  double capacity;
};

// The naive algorithm: any augmenting path, depth first, until none is left.
class NaiveFlow {
 public:
  NaiveFlow(int vertices, const std::vector<Edge>& edges) : n_(vertices), r_(n_ * n_, 0) {
    for (const Edge& e : edges) r_[e.from * n_ + e.to] += e.capacity;
  }
  double Solve(int s, int t) {
    double total = 0;
    while (true) {
      seen_.assign(n_, false);
      const double amount = Augment(s, t, 1e18);
      if (amount <= 0) return total;
      total += amount;
    }
  }

 private:
  double Augment(int u, int t, double limit) {
    if (u == t) return limit;
    seen_[u] = true;
    for (int v = 0; v < n_; ++v) {
      if (seen_[v] || r_[u * n_ + v] <= 1e-9) continue;
      const double amount = Augment(v, t, std::min(limit, r_[u * n_ + v]));
      if (amount <= 0) continue;
      r_[u * n_ + v] -= amount;
      r_[v * n_ + u] += amount;
      return amount;
    }
    return 0;
  }
  int n_;
  std::vector<double> r_;
  std::vector<bool> seen_;
};

TEST(MaxFlow, OfAGraphKnownByHand) {
  FlowNetwork network(6);
  const int a = network.AddEdge(0, 1, 16), b = network.AddEdge(0, 2, 13);
  network.AddEdge(1, 2, 10);
  network.AddEdge(2, 1, 4);
  network.AddEdge(1, 3, 12);
  network.AddEdge(3, 2, 9);
  network.AddEdge(2, 4, 14);
  network.AddEdge(4, 3, 7);
  network.AddEdge(3, 5, 20);
  network.AddEdge(4, 5, 4);
  EXPECT_DOUBLE_EQ(network.Solve(0, 5), 23);
  EXPECT_DOUBLE_EQ(network.EdgeFlow(a) + network.EdgeFlow(b), 23);
  EXPECT_TRUE(network.SourceSide(0));
  EXPECT_FALSE(network.SourceSide(5));
}

TEST(MaxFlow, NoPathCarriesNothing) {
  FlowNetwork network(3);
  network.AddEdge(0, 1, 5);
  EXPECT_EQ(network.Solve(0, 2), 0);
}

// Value, conservation, capacities and the cut agree with augmenting paths on random graphs.
TEST(MaxFlow, AgreesWithAugmentingPaths) {
  const int rounds = 2000 * TestScale();
  for (int round = 0; round < rounds; ++round) {
    Rng rng(round);
    const int n = static_cast<int>(rng.Between(2, 14));
    const int m = static_cast<int>(rng.Between(0, n * n));
    std::vector<Edge> edges;
    FlowNetwork network(n);
    for (int e = 0; e < m; ++e) {
      const int u = static_cast<int>(rng.Between(0, n - 1)),
                v = static_cast<int>(rng.Between(0, n - 1));
      if (u == v) continue;
      const double capacity = rng.Between(0, 5) == 0 ? 0 : 1000 * rng.Uniform();
      edges.push_back({u, v, capacity});
      network.AddEdge(u, v, capacity);
    }
    const double value = network.Solve(0, n - 1);
    ASSERT_NEAR(value, NaiveFlow(n, edges).Solve(0, n - 1), 1e-6) << "round " << round;
    std::vector<double> surplus(n, 0);
    double cut = 0;
    for (size_t e = 0; e < edges.size(); ++e) {
      const double flow = network.EdgeFlow(static_cast<int>(e));
      ASSERT_GE(flow, -1e-9);
      ASSERT_LE(flow, edges[e].capacity + 1e-9);
      surplus[edges[e].from] -= flow;
      surplus[edges[e].to] += flow;
      if (network.SourceSide(edges[e].from) && !network.SourceSide(edges[e].to)) {
        cut += edges[e].capacity;
      }
    }
    for (int v = 1; v + 1 < n; ++v) ASSERT_NEAR(surplus[v], 0, 1e-6) << "round " << round;
    ASSERT_NEAR(cut, value, 1e-6) << "round " << round;
  }
}

}  // namespace
}  // namespace millrace::plan
