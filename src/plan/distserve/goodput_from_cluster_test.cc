#include "plan/distserve/goodput_from_cluster.h"

#include <gtest/gtest.h>

namespace millrace::plan {
namespace {

// A step of a layer takes 2 ms, 10 us for each decode, 5 us for each prompt token.
class SmallCost : public cost::StepCost {
 public:
  double Seconds(const cost::BatchShape& batch) const override {
    return (batch.decode_sequences > 0 ? 2e-3 : 0) + 10e-6 * batch.decode_sequences +
           5e-6 * static_cast<double>(batch.prefill_tokens);
  }
};

Result<std::unique_ptr<cost::StepCost>> Small(const NodeSpec&, const ModelFootprint&, int) {
  return std::unique_ptr<cost::StepCost>(std::make_unique<SmallCost>());
}

TEST(GoodputFromClusterTest, TakesRatesMemoryLatencyAndTrunksOver) {
  ModelFootprint model;
  model.name = "toy";
  model.spec.num_layers = 4;
  model.spec.hidden_size = 500;
  model.spec.num_heads = model.spec.num_kv_heads = 5;
  model.spec.head_dim = 50;
  model.spec.dtype = DType::kBF16;
  model.layer_bytes = 1'000'000;
  ClusterSpec cluster;
  cluster.name = "two";
  for (const char* region : {"east", "west"}) {
    NodeSpec node;
    node.name = node.region = region;
    node.device = "gpu";
    node.memory_bytes = 2'500'000;
    cluster.nodes.push_back(node);
  }
  cluster.trunks = {{"rail", 2e5}};
  cluster.links = {{0, 1, 1e6, Duration::Millis(7), 0},
                   {1, 0, 1e6, Duration::Millis(8), 0},
                   {2, 0, 1e6, Duration::Millis(1), {}},
                   {0, 2, 1e6, Duration::Millis(1), {}},
                   {1, 2, 1e6, Duration::Millis(9), 0}};
  constexpr WorkloadMix kMix{100, 50};
  const NodeCapacityOptions all{.usable_memory = 1, .step_tokens = 0};
  auto flow = FlowFromCluster(cluster, model, kMix, Small, true, all);
  ASSERT_TRUE(flow.ok()) << flow.status().ToString();
  const auto problem = GoodputFromCluster(*flow, cluster, model, kMix, Small, {1000, 4}, all);
  ASSERT_TRUE(problem.ok()) << problem.status().ToString();
  EXPECT_NEAR(problem->rates[0].prefill_s_per_token, 5e-6, 1e-12);
  EXPECT_NEAR(problem->rates[0].decode_s_per_token, 10e-6, 1e-12);
  EXPECT_NEAR(problem->rates[0].decode_s_per_step, 2e-3, 1e-12);
  ASSERT_EQ(problem->kv_token_layers[0].size(), 2u);
  EXPECT_NEAR(static_cast<double>(problem->kv_token_layers[0][1]), 500, 1)
      << "0.5 MB beside two layers, 1 kB per token and layer";
  EXPECT_NEAR(static_cast<double>(problem->kv_token_layers[0][0]), 1500, 1);
  EXPECT_DOUBLE_EQ(problem->link_latency_s[0 * 3 + 1], 7e-3);
  ASSERT_EQ(problem->trunks.size(), 2u) << "one for each direction";
  for (const Trunk& trunk : problem->trunks) {
    EXPECT_DOUBLE_EQ(trunk.tokens_per_s, 200);
    EXPECT_EQ(trunk.links.size(), 1u) << "the coordinator's links excluded";
  }
}

// A layer as above; after the last one a head of 3 ms and 20 us for each decode.
class HeadedCost : public cost::StepCost {
 public:
  HeadedCost(int layers, bool whole) : layers_(layers), whole_(whole) {}
  double Seconds(const cost::BatchShape& batch) const override {
    return layers_ * SmallCost().Seconds(batch) +
           (whole_ ? 3e-3 + 20e-6 * batch.decode_sequences : 0);
  }

 private:
  const int layers_;
  const bool whole_;
};

TEST(GoodputFromClusterTest, TheHeadIsWhatAStepTakesBeyondTheLayers) {
  ModelFootprint model;
  model.spec.num_layers = 4;
  const auto cost = [](const NodeSpec&, const ModelFootprint& of, int layers) {
    return Result<std::unique_ptr<cost::StepCost>>(
        std::make_unique<HeadedCost>(layers, layers == of.spec.num_layers));
  };
  const auto rates = LayerRatesOf({}, model, {100, 50}, cost, 0);
  ASSERT_TRUE(rates.ok()) << rates.status().ToString();
  EXPECT_NEAR(rates->decode_s_per_step, 2e-3, 1e-12);
  EXPECT_NEAR(rates->head_s_per_step, 3e-3, 1e-9);
  EXPECT_NEAR(rates->head_s_per_token, 20e-6, 1e-12);
  EXPECT_NEAR(rates->HeadSeconds(10), 3.2e-3, 1e-9);
}

// A step of a layer takes 1 ms, 1 us for each prompt token and 1 us for each 100 pairs of
// positions.
class PairsCost : public cost::StepCost {
 public:
  double Seconds(const cost::BatchShape& batch) const override {
    return 1e-3 + 1e-6 * static_cast<double>(batch.prefill_tokens) +
           1e-8 * static_cast<double>(batch.prefill_tokens_squared);
  }
};

// A prompt of 1,000 tokens in steps of at most 250: four times the 1 ms of a step, and all pairs.
TEST(GoodputFromClusterTest, APromptTakesAsManyStepsAsTheServerAllows) {
  ModelFootprint model;
  model.spec.num_layers = 1;
  const LayerCost cost = [](const NodeSpec&, const ModelFootprint&, int) {
    return Result<std::unique_ptr<cost::StepCost>>(std::make_unique<PairsCost>());
  };
  const WorkloadMix mix{1000, 50};
  const double once_s = 1e-3 + 1e-3 + 1e-2;
  for (const int any : {0, 1000, 2048}) {
    EXPECT_NEAR(LayerRatesOf({}, model, mix, cost, any)->prefill_s_per_token * 1000, once_s, 1e-9);
  }
  const auto chunked = LayerRatesOf({}, model, mix, cost, 250);
  EXPECT_NEAR(chunked->prefill_s_per_token * 1000, once_s + 3e-3, 1e-9);
}

// A device takes 6 ms for a token of a prompt in a layer, and n devices together an n-th of it.
class DevicesCost : public cost::StepCost {
 public:
  explicit DevicesCost(double devices) : devices_(devices) {}
  double Seconds(const cost::BatchShape& batch) const override {
    return 6e-3 * static_cast<double>(batch.tokens()) / devices_;
  }

 private:
  const double devices_;
};

TEST(GoodputFromClusterTest, KnowsTheTimesOfSomeDevicesOfANode) {
  ModelFootprint model;
  model.spec.num_layers = 2;
  model.spec.hidden_size = 500;
  model.spec.num_heads = model.spec.num_kv_heads = 5;
  model.spec.head_dim = 50;
  model.layer_bytes = 1'000'000;
  ClusterSpec cluster;
  cluster.nodes = {{.name = "one", .device = "g", .memory_bytes = 10'000'000},
                   {.name = "three", .device = "g", .device_count = 3, .memory_bytes = 30'000'000}};
  const LayerCost cost = [](const NodeSpec& node, const ModelFootprint&, int) {
    return Result<std::unique_ptr<cost::StepCost>>(
        std::make_unique<DevicesCost>(node.device_count));
  };
  const WorkloadMix mix{100, 50};
  const NodeCapacityOptions all{.usable_memory = 1, .step_tokens = 0};
  auto flow = FlowFromCluster(cluster, model, mix, cost, true, all);
  ASSERT_TRUE(flow.ok()) << flow.status().ToString();
  const auto problem = GoodputFromCluster(*flow, cluster, model, mix, cost, {1000, 4}, all);
  ASSERT_TRUE(problem.ok()) << problem.status().ToString();
  ASSERT_EQ(problem->on_devices.size(), 2u);
  EXPECT_TRUE(problem->on_devices[0].empty());
  ASSERT_EQ(problem->on_devices[1].size(), 2u);
  EXPECT_NEAR(problem->on_devices[1][0].rates.prefill_s_per_token, 6e-3, 1e-9);
  EXPECT_NEAR(problem->on_devices[1][1].rates.prefill_s_per_token, 3e-3, 1e-9);
  // As a node of one device has it.
  EXPECT_EQ(problem->on_devices[1][0].kv_token_layers, problem->kv_token_layers[0]);
  EXPECT_EQ(problem->on_devices[1][0].tokens_per_s, problem->flow.nodes[0].tokens_per_s);
}

}  // namespace
}  // namespace millrace::plan
