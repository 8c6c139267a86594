#include "plan/flow/trunks.h"

#include <gtest/gtest.h>

#include "plan/flow/check.h"

namespace millrace::plan {
namespace {

constexpr TokenBytes kBytes{100, 4};

// Two nodes in each of two regions; a model of two layers, one per node. Every route crosses once
// from west to east, over a trunk of 1,000 tokens per second.
ClusterSpec Cluster(double trunk_tokens_per_s) {
  ClusterSpec cluster;
  cluster.name = "coasts";
  cluster.trunks = {{"rail", trunk_tokens_per_s * 100}};
  for (int i = 0; i < 4; ++i) {
    NodeSpec node;
    node.name = i < 2 ? "west" : "east";
    node.name += std::to_string(i);
    node.region = i < 2 ? "west" : "east";
    cluster.nodes.push_back(node);
  }
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      if ((from < 2) != (to < 2)) cluster.links.push_back({from, to, 1e6, {}, 0});
    }
    cluster.links.push_back({from, 4, 1e6, {}, {}});
    cluster.links.push_back({4, from, 1e6, {}, {}});
  }
  return cluster;
}

FlowProblem Problem(const ClusterSpec& cluster) {
  FlowProblem problem;
  problem.cluster = cluster.name;
  problem.model = "toy";
  problem.num_layers = 2;
  for (const NodeSpec& node : cluster.nodes) {
    problem.nodes.push_back({node.name, "gpu", node.region, {800.0}});
  }
  problem.link_tokens_per_s.assign(25, 0);
  for (const LinkSpec& link : cluster.links) {
    const bool ends = link.from == 4 || link.to == 4;
    problem.link_tokens_per_s[static_cast<size_t>(link.from * 5 + link.to)] =
        link.bytes_per_s / (ends ? 4 : 100);
  }
  return problem;
}

PlanOptions Quick() {
  PlanOptions options;
  options.iterations = 2000;
  return options;
}

TEST(TrunksTest, APlanThatOverloadsATrunkIsMadeToFit) {
  const ClusterSpec cluster = Cluster(1000);
  const FlowProblem problem = Problem(cluster);
  const auto free = PlanByFlow(problem, Quick());
  ASSERT_TRUE(free.ok()) << free.status().ToString();
  EXPECT_NEAR(free->plan.tokens_per_s, 1600, 1e-6);
  const auto loads = TrunkLoads(cluster, free->plan, kBytes);
  double most = 0;
  for (const TrunkLoad& load : loads) most = std::max(most, load.bytes_per_s);
  EXPECT_GT(most, 0) << "every route crosses";

  const auto fitted = PlanWithinTrunks(problem, cluster, kBytes, Quick());
  ASSERT_TRUE(fitted.ok()) << fitted.status().ToString();
  for (const TrunkLoad& load : TrunkLoads(cluster, fitted->plan, kBytes)) {
    EXPECT_LE(load.bytes_per_s, load.capacity * (1 + 1e-6));
  }
  EXPECT_GT(fitted->plan.tokens_per_s, 999);
  const FlowProblem full = WithTrunksFull(problem, cluster, fitted->plan, kBytes);
  EXPECT_EQ(CheckPlan(full, fitted->plan), std::vector<std::string>());
  const PlacementFlow same = FlowWithinTrunks(problem, cluster, kBytes, free->placement);
  EXPECT_GE(same.tokens_per_s, 1000 - 1e-6);
  for (const TrunkLoad& load :
       TrunkLoads(cluster, MakePlan(problem, free->placement, same, 1600), kBytes)) {
    EXPECT_LE(load.bytes_per_s, load.capacity * (1 + 1e-6));
  }
  EXPECT_GE(fitted->plan.tokens_per_s_bound, 1600 - 1e-6) << "links alone";
}

TEST(TrunksTest, HalvingATrunkHalvesWhatItBinds) {
  double flows[2];
  for (int i = 0; i < 2; ++i) {
    const ClusterSpec cluster = Cluster(i == 0 ? 400 : 200);
    const auto fitted = PlanWithinTrunks(Problem(cluster), cluster, kBytes, Quick());
    ASSERT_TRUE(fitted.ok()) << fitted.status().ToString();
    flows[i] = fitted->plan.tokens_per_s;
  }
  EXPECT_NEAR(flows[1], flows[0] / 2, 1e-3);
}

TEST(TrunksTest, AThinTrunkIsGoneAround) {
  ClusterSpec cluster = Cluster(1);
  FlowProblem problem = Problem(cluster);
  // The two western nodes hold the whole model by themselves, but more slowly.
  for (FlowNode& node : problem.nodes) {
    if (node.region == "west") node.tokens_per_s = {800.0, 300.0};
  }
  const auto fitted = PlanWithinTrunks(problem, cluster, kBytes, Quick());
  ASSERT_TRUE(fitted.ok()) << fitted.status().ToString();
  EXPECT_NEAR(fitted->plan.tokens_per_s, 600, 1e-6);
}

TEST(TrunksTest, TheTwoDirectionsAreApart) {
  const ClusterSpec cluster = Cluster(1000);
  Plan plan;
  plan.stages = {{{0}, 1, {0, 1}, StageRole::kBoth},
                 {{2}, 1, {1, 2}, StageRole::kBoth},
                 {{3}, 1, {0, 1}, StageRole::kBoth},
                 {{1}, 1, {1, 2}, StageRole::kBoth}};
  plan.edges = {{{}, 0, 30}, {{}, 2, 50}, {0, 1, 30}, {2, 3, 50}, {1, {}, 30}, {3, {}, 50}};
  const auto loads = TrunkLoads(cluster, plan, kBytes);
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0].bytes_per_s, 3000) << "west to east, against the order of their names";
  EXPECT_EQ(loads[1].bytes_per_s, 5000);
}

}  // namespace
}  // namespace millrace::plan
