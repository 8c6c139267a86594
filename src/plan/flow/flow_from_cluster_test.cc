#include "plan/flow/flow_from_cluster.h"

#include <gtest/gtest.h>

#include "cost/memory_model.h"

namespace millrace::plan {
namespace {

// A model with round numbers: 1 MB per layer, 1 kB of KV per token and layer.
ModelFootprint Model(int layers = 8) {
  ModelFootprint model;
  model.name = "toy";
  model.spec.num_layers = layers;
  model.spec.hidden_size = 500;
  model.spec.num_heads = model.spec.num_kv_heads = 5;
  model.spec.head_dim = 50;
  model.spec.dtype = DType::kBF16;
  model.layer_bytes = 1'000'000;
  return model;
}

NodeSpec Node(double memory_mb, const char* device = "gpu") {
  NodeSpec node;
  node.name = device;
  node.device = device;
  node.memory_bytes = static_cast<int64_t>(memory_mb * 1e6);
  return node;
}

// Every layer takes 1 ms per step and 1 us for each token in it.
class LinearCost : public cost::StepCost {
 public:
  explicit LinearCost(int layers) : layers_(layers) {}
  double Seconds(const cost::BatchShape& batch) const override {
    if (batch.empty()) return 0;
    return layers_ * (1e-3 + 1e-6 * static_cast<double>(batch.tokens()));
  }

 private:
  const int layers_;
};

Result<std::unique_ptr<cost::StepCost>> Linear(const NodeSpec&, const ModelFootprint&, int layers) {
  return std::unique_ptr<cost::StepCost>(std::make_unique<LinearCost>(layers));
}

constexpr WorkloadMix kMix{100, 50};
const NodeCapacityOptions kAllMemory{.usable_memory = 1, .step_tokens = 0};

TEST(FlowFromClusterTest, MemoryHoldsWeightsAndTheCacheOfOneSequence) {
  // Three layers: 3 MB of weights, and 150 tokens of 3 kB are 0.45 MB.
  EXPECT_EQ(MaxLayers(Node(3.45), Model(), kMix, kAllMemory), 3);
  EXPECT_EQ(MaxLayers(Node(3.44), Model(), kMix, kAllMemory), 2);
  EXPECT_EQ(MaxLayers(Node(1.0), Model(), kMix, kAllMemory), 0);
  EXPECT_EQ(MaxLayers(Node(1000), Model(), kMix, kAllMemory), 8) << "the whole model";
  EXPECT_DOUBLE_EQ(ResidentSequences(Node(3 + 3 * 0.125 * 7), Model(), kMix, 3, kAllMemory), 7);

  ModelFootprint with_ends = Model();
  with_ends.embedding_bytes = 400'000;
  with_ends.head_bytes = 500'000;
  EXPECT_EQ(MaxLayers(Node(3.95), with_ends, kMix, kAllMemory), 3);
  EXPECT_EQ(MaxLayers(Node(3.94), with_ends, kMix, kAllMemory), 2);
  EXPECT_EQ(MaxLayers(Node(9.2 + 0.9), with_ends, kMix, kAllMemory), 8) << "both ends";
  EXPECT_EQ(MaxLayers(Node(9.2 + 0.89), with_ends, kMix, kAllMemory), 7);
}

// As the simulator and workers compute it: what the planner places must run.
TEST(FlowFromClusterTest, AStepNeedsMemoryBesideTheWeights) {
  const NodeCapacityOptions steps{.usable_memory = 1, .step_tokens = 100};
  const double workspace_mb = 100 * (750 + 2 * 500) * 4 / 1e6;  // of f32: Q, K, V and two rows
  EXPECT_EQ(MaxLayers(Node(3.45 + workspace_mb), Model(), kMix, steps), 3);
  EXPECT_EQ(MaxLayers(Node(3.44 + workspace_mb), Model(), kMix, steps), 2);
}

TEST(FlowFromClusterTest, TheRateIsThatOfDecodesAndTheirPrompts) {
  // All 8 layers and room for 10 sequences of 125 tokens on average; the single stage works on all
  // ten.
  const NodeSpec node = Node(8 + 8 * 0.125 * 10.5);
  const auto rates = NodeTokensPerSecond(node, Model(), kMix, Linear, kAllMemory);
  ASSERT_TRUE(rates.ok());
  ASSERT_EQ(rates->size(), 8u);
  // 50 steps of ten decodes, and ten prompts of 100 tokens within them, make 1,500 tokens.
  const double seconds = 8 * (50 * (1e-3 + 10e-6) + 10 * 100e-6);
  EXPECT_NEAR(rates->back(), 1500 / seconds, 1e-6 * rates->back());
}

TEST(FlowFromClusterTest, AShortTurnOfADeepPipelineCostsRate) {
  // A node with four of eight layers: two stages share the sequences. With room for 1.5 sequences,
  // a stage has work only part of the time.
  const NodeSpec node = Node(4 + 4 * 0.125 * 1.5);
  const auto rates = NodeTokensPerSecond(node, Model(), kMix, Linear, kAllMemory);
  ASSERT_TRUE(rates.ok());
  ASSERT_EQ(rates->size(), 4u);
  const double busy = 150 / (4 * (50 * (1e-3 + 1e-6) + 100e-6));
  EXPECT_NEAR(rates->back(), busy * 0.75, 1e-6 * busy);
}

TEST(FlowFromClusterTest, AStepHasRoomForOutputsAndForThePromptsThatReplaceThem) {
  // Of the 150 tokens of a request 50 are outputs: of the 30 of a step 10 are. A prompt of 100 then
  // takes five steps with 20 tokens of it, which cost nothing but these tokens.
  NodeCapacityOptions steps{.usable_memory = 1, .step_tokens = 30};
  const auto rates = NodeTokensPerSecond(Node(1000), Model(), kMix, Linear, steps);
  ASSERT_TRUE(rates.ok());
  const double seconds = 8 * (50 * (1e-3 + 10e-6) + 10 * 100e-6);
  EXPECT_NEAR(rates->back(), 1500 / seconds, 1e-6 * rates->back());
  steps.max_sequences = 5;
  const auto five = NodeTokensPerSecond(Node(1000), Model(), kMix, Linear, steps);
  EXPECT_NEAR(five->back(), 750 / (8 * (50 * (1e-3 + 5e-6) + 5 * 100e-6)), 1e-6 * five->back());
}

TEST(FlowFromClusterTest, LinksNicsAndTrunksBecomeTokensPerSecond) {
  ClusterSpec cluster;
  cluster.name = "two";
  cluster.nodes = {Node(100, "a"), Node(100, "b")};
  cluster.nodes[1].nic_bytes_per_s = 1000.0 * 7;
  cluster.trunks = {{"thin", 5e5}};
  cluster.links = {
      {0, 1, 1e6, {}, {}}, {1, 0, 1e6, {}, 0}, {2, 0, 400, {}, {}}, {1, 2, 800, {}, {}}};
  const auto problem = FlowFromCluster(cluster, Model(), kMix, Linear, false, kAllMemory);
  ASSERT_TRUE(problem.ok()) << problem.status().ToString();
  EXPECT_EQ(problem->nodes[0].name, "a");
  EXPECT_FALSE(problem->partial_inference);
  EXPECT_EQ(problem->Link(0, 1), 1000) << "500 numbers of two bytes each";
  EXPECT_EQ(problem->Link(1, 0), 500) << "the trunk";
  EXPECT_EQ(problem->Link(2, 0), 100) << "ids of four bytes";
  EXPECT_EQ(problem->Link(1, 2), 200);
  EXPECT_EQ(problem->Link(0, 2), 0);
  for (double rate : problem->nodes[1].tokens_per_s) EXPECT_LE(rate, 7);
  EXPECT_TRUE(ValidateFlowProblem(*problem).ok());
}

TEST(FlowFromClusterTest, ActivationsMayHaveAnotherTypeThanTheModel) {
  ClusterSpec cluster;
  cluster.nodes = {Node(100), Node(100)};
  cluster.links.push_back({0, 1, 1e6, {}, {}});
  const auto link = [&](const NodeCapacityOptions& options) {
    return FlowFromCluster(cluster, Model(), kMix, Linear, false, options)->Link(0, 1);
  };
  NodeCapacityOptions wide = kAllMemory;
  wide.activation_bytes = 3 * cost::ActivationBytesPerToken(Model().spec);
  EXPECT_NEAR(link(kAllMemory) / link(wide), 3, 1e-9);
}

// The profile's text is a number here, by which every step takes longer.
Result<std::unique_ptr<cost::StepCost>> Measured(const NodeSpec& node, const ModelFootprint&,
                                                 int layers) {
  return std::unique_ptr<cost::StepCost>(
      std::make_unique<LinearCost>(layers * std::stoi(node.profile)));
}

TEST(FlowFromClusterTest, NodesOfOneDeviceHaveTheTimesThatEachMeasured) {
  ClusterSpec cluster;
  for (const char* name : {"a", "b", "c"}) {
    cluster.nodes.push_back(Node(100, "cpu"));
    cluster.nodes.back().name = name;
    cluster.nodes.back().profile = name == std::string("b") ? "4" : "1";
  }
  const auto problem = FlowFromCluster(cluster, Model(), kMix, Measured, false, kAllMemory);
  ASSERT_TRUE(problem.ok()) << problem.status().ToString();
  EXPECT_NEAR(problem->nodes[0].TokensPerS(8) / problem->nodes[1].TokensPerS(8), 4, 1e-9);
  EXPECT_EQ(problem->nodes[0].tokens_per_s, problem->nodes[2].tokens_per_s);
  EXPECT_EQ(problem->nodes[0].kind, "cpu as a");
  EXPECT_EQ(problem->nodes[1].kind, "cpu as b");
  EXPECT_EQ(problem->nodes[2].kind, "cpu as a");
  cluster.nodes[1].profile = "1";
  EXPECT_EQ(FlowFromCluster(cluster, Model(), kMix, Measured, false, kAllMemory)->nodes[1].kind,
            "cpu");
}

TEST(FlowFromClusterTest, NothingPassesBetweenNumericClasses) {
  ClusterSpec cluster;
  cluster.name = "three";
  cluster.nodes = {Node(100), Node(100), Node(100)};
  cluster.nodes[0].numeric_class = "x86";
  cluster.nodes[1].numeric_class = "arm";
  for (const auto& [from, to] : {std::pair(0, 1), {1, 2}, {2, 0}, {3, 0}, {1, 3}}) {
    cluster.links.push_back({from, to, 1e6, {}, {}});
  }
  const auto problem = FlowFromCluster(cluster, Model(), kMix, Linear, false, kAllMemory);
  ASSERT_TRUE(problem.ok()) << problem.status().ToString();
  EXPECT_EQ(problem->Link(0, 1), 0);
  EXPECT_GT(problem->Link(1, 2), 0) << "a node without a class goes with all";
  EXPECT_GT(problem->Link(2, 0), 0);
  EXPECT_GT(problem->Link(3, 0), 0);
  EXPECT_EQ(problem->nodes[0].kind, "gpu (x86)") << "not interchangeable";
  EXPECT_EQ(problem->nodes[1].kind, "gpu (arm)");
  EXPECT_EQ(problem->nodes[2].kind, "gpu");
}

TEST(FlowFromClusterTest, AModelThatDoesNotFitSaysWhatIsMissing) {
  ClusterSpec cluster;
  cluster.name = "small";
  cluster.nodes = {Node(3.45), Node(1)};
  const auto problem = FlowFromCluster(cluster, Model(), kMix, Linear, true, kAllMemory);
  ASSERT_FALSE(problem.ok());
  EXPECT_EQ(problem.status().message(),
            "toy does not fit: it has 8 layers of 0.00 GB, and the 2 nodes of 'small' hold 3 of "
            "them beside the KV cache of one sequence; add nodes with about 1 GB in all, or take a "
            "model of at most 3 such layers");
}

}  // namespace
}  // namespace millrace::plan
