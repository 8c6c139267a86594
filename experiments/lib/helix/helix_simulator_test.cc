// The imitated simulator and its schedulers on clusters of one to three nodes, with values by hand.
#include "experiments/lib/helix/helix_simulator.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "experiments/lib/helix/helix_baselines.h"
#include "experiments/lib/helix/helix_flow_scheduler.h"

namespace millrace::experiments::helix {
namespace {

constexpr double kWire = 1e6;

// A layer takes 10 ms for any prompts and 4 ms for any decodes (8 ms for one); "fast" takes 7 ms
// for prompts. A token is 2 bytes to and from the coordinator and 1000 between nodes.
HelixModel FlatModel() {
  HelixModel model;
  model.num_layers = 4;
  model.token_bytes = 2;
  model.activation_bytes = 998;
  for (const auto& [name, prompt_s] : {std::pair{"gpu", 0.010}, std::pair{"fast", 0.007}}) {
    HelixGpu gpu;
    gpu.prompt_s.assign(20000, prompt_s);
    gpu.decode_s.assign(2000, 0.004);
    gpu.prompt_s[0] = gpu.decode_s[0] = 0;
    gpu.limits.assign(4, {.kv_entries = 1 << 20, .prompt_max_requests = 2, .decode_max_tokens = 8});
    model.gpus[name] = gpu;
  }
  return model;
}

struct TestCluster : HelixCluster {
  TestCluster() { nic_in_bytes_per_s = nic_out_bytes_per_s = 1e12; }
  void Node(LayerRange layers, std::string gpu = "gpu", int64_t kv = 1 << 20) {
    nodes.push_back({.gpu = std::move(gpu),
                     .layers = layers,
                     .kv_entries = kv,
                     .nic_in_bytes_per_s = 1e12,
                     .nic_out_bytes_per_s = 1e12});
  }
  // Call after adding the last node. -1 is the coordinator.
  void Link(int from, int to, double flow = 1, double latency_s = 0, double bytes_per_s = 1e12) {
    links.push_back({from < 0 ? coordinator() : from, to < 0 ? coordinator() : to, latency_s,
                     bytes_per_s, flow});
  }
};

// Submits a given list of queries.
class ListFeeder : public HelixFeeder {
 public:
  struct Item {
    double at_s;
    int input, output;
  };
  explicit ListFeeder(std::vector<Item> items) : items_(std::move(items)) {}
  void Start(HelixSimulator& simulator) override {
    for (const Item& item : items_) {
      simulator.Submit(item.at_s, item.input, item.output);
    }
  }

 private:
  std::vector<Item> items_;
};

HelixReport RunFlow(const HelixModel& model, const HelixCluster& cluster,
                    std::vector<ListFeeder::Item> items) {
  HelixFlowScheduler scheduler(model, cluster, HelixKvMask::Offline());
  ListFeeder feeder(std::move(items));
  return HelixSimulator(model, cluster, scheduler, feeder).Run(0, 100);
}

// Bytes that arrive at a node are joined at 4 GB/s and copied at 5 GB/s when its first layer runs.
double Copy(int tokens) { return tokens * 998 / 4e9 + tokens * 998 / 5e9; }

TEST(HelixSimulatorTest, OneNode) {
  const HelixModel model = FlatModel();
  TestCluster cluster;
  cluster.Node({0, 4});
  cluster.Link(-1, 0, 1, 1e-3, kWire);
  cluster.Link(0, -1, 1, 2e-3, kWire);
  const HelixReport report = RunFlow(model, cluster, {{0, 10, 2}});
  // Both directions over the wire, both latencies, four layers.
  EXPECT_NEAR(report.prompt_s.mean(), 2 * 20 / kWire + 3e-3 + 0.040 + Copy(10), 2e-9);
  EXPECT_NEAR(report.decode_s.mean(), 2 * 2 / kWire + 3e-3 + 0.032 + Copy(1), 2e-9);
  EXPECT_EQ(report.decode_s.count(), 2u);
  EXPECT_EQ(report.prompt_tokens, 10);
  EXPECT_NEAR(report.residence_s.mean(), report.prompt_s.mean() + 2 * report.decode_s.mean(), 1e-8);
}

TEST(HelixSimulatorTest, ActivationsCrossInnerLinksOneAtATime) {
  const HelixModel model = FlatModel();
  TestCluster cluster;
  cluster.Node({0, 2});
  cluster.Node({2, 4});
  cluster.Link(-1, 0);
  cluster.Link(0, 1, 1, 0, kWire);
  cluster.Link(1, -1);
  const HelixReport one = RunFlow(model, cluster, {{0, 100, 1}});
  EXPECT_NEAR(one.prompt_s.mean(), 0.040 + 100 * 1000 / kWire + 2 * Copy(100), 5e-9);
  // Two prompts run together on the first node, then queue for the wire. The second reaches the
  // second node 100 ms after the first and finds it idle.
  const HelixReport two = RunFlow(model, cluster, {{0, 100, 1}, {0, 100, 1}});
  EXPECT_NEAR(two.prompt_s.max() - two.prompt_s.min(), 0.100, 1e-6);
}

TEST(HelixSimulatorTest, LateEntrantsJoinAtTheirLayer) {
  HelixModel model = FlatModel();
  model.activation_bytes = 0;
  TestCluster cluster;
  cluster.Node({0, 1});          // first query: layer 0 until 10 ms
  cluster.Node({0, 2}, "fast");  // second: layers 0 and 1 until 14 ms
  cluster.Node({1, 4});          // first: layers 1.. from 10 ms; second: layers 2.. from 20 ms
  cluster.Link(-1, 0);
  cluster.Link(-1, 1);
  cluster.Link(0, 2);
  cluster.Link(1, 2);
  cluster.Link(2, -1);
  const HelixReport report = RunFlow(model, cluster, {{0, 100, 1}, {0, 100, 1}});
  // At 20 ms both run layer 2 in one batch, at 30 ms layer 3.
  EXPECT_NEAR(report.prompt_s.min(), 0.040, 1e-6);
  EXPECT_NEAR(report.prompt_s.max(), 0.040, 1e-6);
  EXPECT_EQ(report.kv_overflows, 0);
}

TEST(HelixSimulatorTest, WhatDoesNotFitWaitsAndOthersPass) {
  HelixModel model = FlatModel();
  model.activation_bytes = 0;
  for (HelixLimits& limits : model.gpus["gpu"].limits) limits.prompt_max_requests = 1;
  TestCluster cluster;
  cluster.Node({0, 2});
  cluster.Link(-1, 0);
  cluster.Link(0, -1);
  // The first runs both layers until 20 ms, the second until 40. By then the third waits, followed
  // by the first's decode. They run together, 2 x (10 + 8) ms, although two prompts would not.
  const HelixReport report = RunFlow(model, cluster, {{0, 9, 1}, {0.001, 9, 1}, {0.002, 9, 1}});
  EXPECT_NEAR(report.prompt_s.min(), 0.020, 1e-6);
  EXPECT_NEAR(report.prompt_s.sum(), 0.020 + (0.040 - 0.001) + (0.076 - 0.002), 1e-6);
  EXPECT_NEAR(report.decode_s.max(), 0.076 - 0.020, 1e-6);
}

TEST(HelixSimulatorTest, CacheIsGivenBackAndOverflowCounted) {
  const HelixModel model = FlatModel();
  TestCluster cluster;
  cluster.Node({0, 4}, "gpu", 4 * 102);  // one request of 100 + 2
  cluster.Link(-1, 0);
  cluster.Link(0, -1);
  HelixSwarmScheduler scheduler(cluster);
  ListFeeder apart({{0, 100, 2}, {1, 100, 2}});
  EXPECT_EQ(HelixSimulator(model, cluster, scheduler, apart).Run(0, 100).kv_overflows, 0);
  HelixSwarmScheduler again(cluster);
  ListFeeder together({{0, 100, 2}, {0, 100, 2}});
  EXPECT_GT(HelixSimulator(model, cluster, again, together).Run(0, 100).kv_overflows, 0);
}

TEST(HelixSimulatorTest, OnlyTheWindowCounts) {
  const HelixModel model = FlatModel();
  TestCluster cluster;
  cluster.Node({0, 4});
  cluster.Link(-1, 0);
  cluster.Link(0, -1);
  HelixSwarmScheduler scheduler(cluster);
  ListFeeder feeder({{0, 10, 3}, {5, 10, 3}, {20, 10, 3}});
  const HelixReport report = HelixSimulator(model, cluster, scheduler, feeder).Run(1, 10);
  EXPECT_EQ(report.prompt_s.count(), 1u);
  EXPECT_EQ(report.decode_tokens, 3);
  EXPECT_DOUBLE_EQ(report.DecodeTokensPerS(), 0.3);
}

TEST(HelixFlowSchedulerTest, SharesFollowTheFlow) {
  const HelixModel model = FlatModel();
  TestCluster cluster;
  cluster.Node({0, 4});
  cluster.Node({0, 4});
  cluster.Node({0, 4});
  cluster.Link(-1, 0, 75);
  cluster.Link(-1, 1, 24);
  cluster.Link(-1, 2, 1);  // below a twentieth: left out
  for (int node : {0, 1, 2}) cluster.Link(node, -1, 1);
  HelixState state(model, cluster);
  HelixFlowScheduler scheduler(model, cluster, {.high_water = 1, .output_ratio = 0});
  std::map<int, int> taken;
  for (int i = 0; i < 990; ++i) {
    state.queries.push_back({.input_tokens = 1, .output_tokens = 1});
    ASSERT_TRUE(scheduler.Begin(state, i));
    ++taken[state.queries.back().route.front().link];
  }
  EXPECT_NEAR(taken[0], 750, 1);
  EXPECT_NEAR(taken[1], 240, 1);
  EXPECT_EQ(taken[2], 0);
}

TEST(HelixFlowSchedulerTest, FullCachesAreMaskedUntilGivenBack) {
  const HelixModel model = FlatModel();
  TestCluster cluster;
  cluster.Node({0, 2}, "gpu", 2000);  // at most 850 of 1000 per layer: 240 + input each
  cluster.Node({2, 4}, "gpu", 2000);
  cluster.Link(-1, 0);
  cluster.Link(0, 1);
  cluster.Link(1, -1);
  HelixState state(model, cluster);
  state.queries.assign(5, {.input_tokens = 160, .output_tokens = 1});
  HelixFlowScheduler scheduler(model, cluster, HelixKvMask::Offline());
  EXPECT_TRUE(scheduler.Begin(state, 0));
  EXPECT_NEAR(*scheduler.BottleneckUsage(), 0.4, 1e-12);
  EXPECT_TRUE(scheduler.Begin(state, 1));
  EXPECT_FALSE(scheduler.Begin(state, 2)) << "a third would fill 1.2 of the cache";
  scheduler.End(state, 0);
  EXPECT_TRUE(scheduler.Begin(state, 3));
  EXPECT_EQ(state.queries[3].route.size(), 3u);
  EXPECT_EQ(state.queries[3].route[1].layers, (LayerRange{2, 4}));
}

TEST(HelixFlowSchedulerTest, ADeadEndLeavesTheLoadsAsTheyWere) {
  const HelixModel model = FlatModel();
  TestCluster cluster;
  cluster.Node({0, 2});
  cluster.Node({0, 2});
  cluster.Node({2, 4}, "gpu", 1);  // never has room
  cluster.Node({2, 4});
  cluster.Link(-1, 0);
  cluster.Link(-1, 1);
  cluster.Link(0, 2);
  cluster.Link(1, 3);
  cluster.Link(2, -1);
  cluster.Link(3, -1);
  HelixState state(model, cluster);
  state.queries.assign(4, {.input_tokens = 10, .output_tokens = 1});
  HelixFlowScheduler scheduler(model, cluster, HelixKvMask::Offline());
  // Each time the walk goes to node 0 first, because its load is restored: Helix's greedy dead end.
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(scheduler.Begin(state, i));
}

// Two servers, one three times as slow: the stride queue gives it a third of the other's share.
TEST(HelixSwarmSchedulerTest, SharesFollowMeasuredDelay) {
  const HelixModel model = FlatModel();
  TestCluster cluster;
  cluster.Node({0, 1});
  cluster.Node({0, 3});
  cluster.Node({1, 4});
  cluster.Node({3, 4});
  cluster.Link(-1, 0);
  cluster.Link(-1, 1);
  cluster.Link(0, 2);
  cluster.Link(1, 3);
  cluster.Link(2, -1);
  cluster.Link(3, -1);
  HelixSwarmScheduler scheduler(cluster);
  struct Counting : HelixSwarmScheduler {
    using HelixSwarmScheduler::HelixSwarmScheduler;
    void End(HelixState& state, HelixQueryIndex query) override {
      ++ended[state.queries[static_cast<size_t>(query)].route.front().link];
    }
    std::map<int, int> ended;
  } counting(cluster);
  std::vector<ListFeeder::Item> items;
  for (int i = 0; i < 400; ++i) items.push_back({i * 0.2, 100, 1});
  ListFeeder feeder(items);
  HelixSimulator(model, cluster, counting, feeder).Run(0, 1000);
  EXPECT_NEAR(counting.ended[0], 300, 6);
  EXPECT_NEAR(counting.ended[1], 100, 6);
}

TEST(HelixRandomSchedulerTest, ShortestQueueAvoidsTheLongOne) {
  const HelixModel model = FlatModel();
  TestCluster cluster;
  cluster.Node({0, 4});
  cluster.Node({0, 4});
  cluster.Link(-1, 0);
  cluster.Link(-1, 1);
  cluster.Link(0, -1);
  cluster.Link(1, -1);
  using Choice = HelixRandomScheduler::Choice;
  for (const Choice choice : {Choice::kAny, Choice::kShortestQueue}) {
    HelixState state(model, cluster);
    PythonRandom random(0);
    HelixRandomScheduler scheduler(cluster, choice, &random);
    state.entry_queue[0] = 3;
    std::map<int, int> taken;
    for (int i = 0; i < 200; ++i) {
      state.queries.push_back({.input_tokens = 1, .output_tokens = 1});
      scheduler.Enqueue(state, cluster.coordinator(), i);
      std::vector<HelixSend> sends;
      std::vector<int> ask_again;
      scheduler.Schedule(state, cluster.coordinator(), &sends, &ask_again);
      ASSERT_EQ(sends.size(), 1u);
      ++taken[sends[0].link];
    }
    const bool any = choice == Choice::kAny;
    EXPECT_NEAR(taken[1], any ? 100 : 200, any ? 30 : 0);
  }
}

}  // namespace
}  // namespace millrace::experiments::helix
