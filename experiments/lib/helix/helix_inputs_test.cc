// Tests the inputs of the imitation: tables, T(k), cluster files, Python's random numbers, flows.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "base/testing/source_path.h"
#include "base/testing/test_scale.h"
#include "experiments/lib/helix/helix_cluster.h"
#include "experiments/lib/helix/helix_model.h"
#include "experiments/lib/helix/helix_workload.h"
#include "experiments/lib/helix/ordered_flow.h"
#include "experiments/lib/helix/python_random.h"
#include "plan/flow/max_flow.h"

namespace millrace::experiments::helix {
namespace {

// CPython 3.11, random.seed(0).
TEST(PythonRandomTest, DrawsWhatPythonDraws) {
  PythonRandom uniform(0), below(0), shuffle(0);
  EXPECT_EQ(uniform.Uniform(), 0.8444218515250481);
  EXPECT_EQ(uniform.Uniform(), 0.7579544029403025);
  for (uint32_t drawn : {12623u, 13781u, 1326u, 8484u, 15922u, 13268u}) {
    EXPECT_EQ(below.Below(16657), drawn);
  }
  std::vector<int> items = {0, 1, 2, 3, 4, 5};
  shuffle.Shuffle(&items);
  EXPECT_EQ(items, (std::vector<int>{4, 2, 1, 0, 5, 3}));
}

HelixModel SmallModel() {
  auto model = LoadHelixModel(SourcePath("experiments/lib/helix/testdata/helix"), "llama1_30b");
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  return *model;
}

// The artifact's T(k) for its ten-node cluster.
TEST(HelixModelTest, ThroughputIsThePublishedOne) {
  const auto tokens_per_s = HelixThroughput(SmallModel(), {{"L4", 4}, {"T4", 6}});
  const double t4[] = {1987.96933583407,  901.9376894944129, 539.0387352860497, 404.2621425031171,
                       285.3446689050558, 331.3431275280855, 231.0619074422882};
  ASSERT_EQ(tokens_per_s.at("T4").size(), 7u);
  for (size_t k = 0; k < 7; ++k) EXPECT_NEAR(tokens_per_s.at("T4")[k] / t4[k], 1, 1e-12) << k;
  ASSERT_EQ(tokens_per_s.at("L4").size(), 11u);
  EXPECT_NEAR(tokens_per_s.at("L4")[8] / 168.1672159813898, 1, 1e-12);
}

TEST(HelixModelTest, TablesAndLimits) {
  const HelixModel model = SmallModel();
  const HelixGpu& t4 = model.gpus.at("T4");
  EXPECT_EQ(t4.prompt_s[0], 0);
  EXPECT_NEAR(t4.decode_s[1] * 2, t4.decode_s[2], 1e-15) << "the tables begin at the origin";
  EXPECT_EQ(t4.LimitsOf(2).kv_entries, 389248);
  EXPECT_EQ(t4.LimitsOf(2).decode_max_tokens, 220);
  EXPECT_EQ(t4.LimitsOf(9).kv_entries, t4.LimitsOf(7).kv_entries)
      << "more layers than there is data for";
}

TEST(HelixModelTest, UnknownNamesAreErrors) {
  EXPECT_EQ(LoadHelixModel("/nowhere", "llama2_70b").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(LoadHelixModel("/nowhere", "gpt").status().code(), StatusCode::kNotFound);
}

constexpr char kPlacement[] =
    "[Settings]\noffset=2\n[Solution]\ncompute_node_2=[0, 1]\ncompute_node_3=[2, 3, 4]\n";

std::string ClusterText(const std::string& latency = "1.0 * MilliSec") {
  std::string text =
      "# made by hand\n[Coordinator]\ninbound_nic_speed=10000.0 * mbps\n"
      "outbound_nic_speed=10000.0 * mbps\n[ComputeNodes]\n"
      "names=['compute_node_2', 'compute_node_3']\n[Links]\n"
      "names=['in', 'over', 'out']\n";
  for (const char* node : {"compute_node_2", "compute_node_3"}) {
    text += std::string("[") + node +
            "]\nmachine_type=\"T4\"\ninbound_nic_speed=1.0 * gbps\noutbound_nic_speed=1.0 * "
            "gbps\ndisk_speed=1000.0 * mbps\nkv_cache_capacity=1000\n";
  }
  text += "[in]\nin=source\nout=compute_node_2\nlatency=" + latency + "\nbandwidth=12.5 * mbps\n";
  text += "[over]\nin=compute_node_2\nout=compute_node_3\nlatency=0\nbandwidth=1000.0 * mbps\n";
  text += "[out]\nin=compute_node_3\nout=sink\nlatency=0\nbandwidth=1000.0 * mbps\n";
  return text;
}

TEST(HelixClusterTest, ReadsTheSimulatorsFile) {
  const auto cluster = ParseHelixCluster(ClusterText(), "c.ini", kPlacement, "p.ini");
  ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
  ASSERT_EQ(cluster->nodes.size(), 2u);
  EXPECT_EQ(cluster->nodes[1].layers, (LayerRange{2, 5}));
  EXPECT_EQ(cluster->nodes[1].kv_entries, 1000);
  EXPECT_EQ(cluster->nodes[1].nic_in_bytes_per_s, 1e9);
  ASSERT_EQ(cluster->links.size(), 3u);
  EXPECT_EQ(cluster->links[0].from, cluster->coordinator());
  EXPECT_EQ(cluster->links[0].bytes_per_s, 12.5e6);
  EXPECT_EQ(cluster->links[0].latency_s, 1e-3);
  EXPECT_EQ(cluster->links[2].to, cluster->coordinator());
  EXPECT_EQ(cluster->Fleet(), (HelixFleet{{"T4", 2}}));
}

TEST(HelixClusterTest, ErrorsNameThePlace) {
  const auto unit = ParseHelixCluster(ClusterText("1.0 * fortnight"), "c.ini", kPlacement, "p.ini");
  EXPECT_NE(unit.status().message().find("c.ini"), std::string::npos);
  EXPECT_NE(unit.status().message().find("unknown unit \"fortnight\""), std::string::npos);
  const auto placement = ParseHelixCluster(
      ClusterText(), "c.ini", "[Settings]\noffset=2\n[Solution]\ncompute_node_2=[0]\n", "p.ini");
  EXPECT_NE(placement.status().message().find("compute_node_3] holds no layers"),
            std::string::npos);
}

TEST(HelixClusterTest, OneLinkPerPair) {
  std::string text = ClusterText();
  text.replace(text.find("out=compute_node_3"), 18, "out=compute_node_2");
  EXPECT_NE(ParseHelixCluster(text, "c.ini", kPlacement, "p.ini")
                .status()
                .message()
                .find("[over] joins a node to itself"),
            std::string::npos);
}

TEST(HelixClusterTest, DeadEndsAreLeftOut) {
  auto cluster = ParseHelixCluster(ClusterText(), "c.ini", kPlacement, "p.ini");
  ASSERT_TRUE(cluster.ok());
  cluster->nodes.push_back(cluster->nodes[0]);  // an end of the line
  for (HelixLink& link : cluster->links) {      // the coordinator's number has increased
    if (link.from == 2) link.from = 3;
    if (link.to == 2) link.to = 3;
  }
  cluster->links.push_back({3, 2, 0, 1e9, 0});
  DropDeadEnds(&*cluster);
  EXPECT_EQ(cluster->links.size(), 3u);
  for (const HelixLink& link : cluster->links) EXPECT_NE(link.to, 2);
}

// networkx 3.6.1, maximum_flow, on a graph with several maximum flows.
TEST(OrderedFlowTest, ChoosesAsNetworkxDoes) {
  OrderedFlow two_ways(6);
  const int edges[] = {two_ways.AddEdge(0, 1, 5), two_ways.AddEdge(1, 2, 4),
                       two_ways.AddEdge(1, 3, 4), two_ways.AddEdge(2, 4, 4),
                       two_ways.AddEdge(3, 4, 4), two_ways.AddEdge(4, 5, 5)};
  EXPECT_EQ(two_ways.Solve(0, 5), 5);
  const double flows[] = {5, 4, 1, 4, 1, 5};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(two_ways.EdgeFlow(edges[i]), flows[i]) << i;
}

TEST(OrderedFlowTest, IsMaximalAndConserved) {
  for (int seed = 0; seed < 200 * TestScale(); ++seed) {
    Rng rng(static_cast<uint64_t>(seed));
    const int n = static_cast<int>(rng.Between(3, 12));
    OrderedFlow ordered(n);
    plan::FlowNetwork network(n);
    struct Edge {
      int from, to, ordered;
      double capacity;
    };
    std::vector<Edge> edges;
    for (int u = 0; u < n; ++u) {
      for (int v = u + 1; v < n; ++v) {
        if (rng.Uniform() < 0.4) continue;
        const bool back = u > 0 && v < n - 1 && rng.Uniform() < 0.3;
        const int from = back ? v : u, to = back ? u : v;
        const auto capacity = static_cast<double>(rng.Between(1, 9));
        edges.push_back({from, to, ordered.AddEdge(from, to, capacity), capacity});
        network.AddEdge(from, to, capacity);
      }
    }
    const double value = ordered.Solve(0, n - 1);
    EXPECT_NEAR(value, network.Solve(0, n - 1), 1e-9) << "seed " << seed;
    std::vector<double> net(static_cast<size_t>(n));
    for (const Edge& edge : edges) {
      const double flow = ordered.EdgeFlow(edge.ordered);
      EXPECT_GE(flow, 0);
      EXPECT_LE(flow, edge.capacity);
      net[static_cast<size_t>(edge.from)] -= flow;
      net[static_cast<size_t>(edge.to)] += flow;
    }
    for (int v = 1; v + 1 < n; ++v) EXPECT_NEAR(net[static_cast<size_t>(v)], 0, 1e-9);
    EXPECT_NEAR(net.back(), value, 1e-9);
  }
}

TEST(HelixWorkloadTest, ArrivalsKeepTheRate) {
  HelixTrace trace;
  trace.lengths = {{300, 100}, {500, 100}};
  trace.requests_per_bin = {0, 1, 2, 5};
  PythonRandom random(0);
  const auto arrivals = DrawArrivals(trace, 2000, /*begin_s=*/0, 3000, &random);  // 4 requests/s
  EXPECT_NEAR(static_cast<double>(arrivals.size()), 12000, 600);
  for (size_t i = 1; i < arrivals.size(); ++i) EXPECT_LE(arrivals[i - 1].at_s, arrivals[i].at_s);
}

}  // namespace
}  // namespace millrace::experiments::helix
