// Tests which step times the machines of a cluster get.
#include "apps/plan/node_costs.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "cost/device_catalog.h"
#include "cost/first_principles_cost.h"

namespace millrace::apps {
namespace {

constexpr int kLayers = 4;
const cost::BatchShape kBatch{.decode_sequences = 8, .decode_context = 800};

ModelSpec Spec() {
  ModelSpec spec;
  spec.num_layers = kLayers;
  spec.hidden_size = 64;
  spec.num_heads = spec.num_kv_heads = 4;
  spec.head_dim = 16;
  spec.intermediate_size = 128;
  spec.vocab_size = 1000;
  return spec;
}

// 1 ms per step and 0.1 ms per token; three quarters of both are in the layers.
cost::Profile Measured(int layers) {
  cost::Profile profile;
  profile.model = "m";
  profile.num_layers = layers;
  profile.threads = 1;
  profile.memory_copy_bytes_per_s = 1e9;
  for (int n = 1; n <= 64; n *= 2) {
    for (const int context : {10, 20, 400}) {
      const cost::BatchShape batch{.decode_sequences = n, .decode_context = n * context};
      const cost::BatchShape prompt{.prefill_tokens = n * context,
                                    .prefill_tokens_squared = int64_t{n} * n * context * context,
                                    .prefill_sequences = 1};
      for (const cost::BatchShape& b : {batch, prompt}) {
        const double step_s = 1e-3 + 1e-4 * static_cast<double>(b.tokens());
        profile.samples.push_back({b, step_s, 0.75 * step_s});
      }
    }
  }
  auto fitted = cost::FitProfile(std::move(profile), {.tokens = {0}, .sequences = {0}});
  EXPECT_TRUE(fitted.ok()) << fitted.status().ToString();
  fitted->front_end = cost::FrontEnd{.request_s = 2e-3, .step_s = 3e-4};
  return std::move(fitted).value();
}

// The time of kBatch with all layers.
double SecondsOf(const NodeCosts& costs, const NodeSpec& node) {
  const auto cost = costs.Of(node, 1, Spec(), {0, kLayers});
  EXPECT_TRUE(cost.ok()) << cost.status().ToString();
  return cost.ok() ? (*cost)->Seconds(kBatch) : 0;
}

class NodeCostsTest : public ::testing::Test {
 protected:
  NodeCostsTest() {
    cluster_.nodes.push_back({.name = "one", .device = "mine"});
    cluster_.nodes.push_back({.name = "other", .device = "l4"});
    Write(Measured(kLayers));
  }
  ~NodeCostsTest() override { std::remove(file_.c_str()); }

  void Write(const cost::Profile& profile) { std::ofstream(file_) << cost::FormatProfile(profile); }
  Status LoadStatus(const std::vector<std::string>& entries) const {
    return NodeCosts::Load(entries, cluster_, Spec()).status();
  }

  const std::string file_ = ::testing::TempDir() + "node_costs_" + std::to_string(getpid());
  ClusterSpec cluster_;
};

TEST_F(NodeCostsTest, MeasuredTimesReplaceTheEstimate) {
  const auto costs = NodeCosts::Load({"mine=" + file_}, cluster_, Spec());
  ASSERT_TRUE(costs.ok()) << costs.status().ToString();
  const auto seconds = [&](int node, LayerRange layers) {
    const auto cost = costs->Of(cluster_.nodes[static_cast<size_t>(node)], 1, Spec(), layers);
    EXPECT_TRUE(cost.ok()) << cost.status().ToString();
    return (*cost)->Seconds(kBatch);
  };
  const double step_s = 1.8e-3;
  EXPECT_NEAR(seconds(0, {1, 2}), 0.75 * step_s / kLayers, 1e-6);
  EXPECT_NEAR(seconds(0, {kLayers, kLayers}), 0.25 * step_s, 1e-6) << "the part after the layers";
  EXPECT_NEAR(seconds(0, {0, kLayers}), step_s, 1e-6);
  EXPECT_DOUBLE_EQ(costs->OverheadSeconds(cluster_.nodes[0]), 3e-4);
  const cost::FirstPrinciplesCost estimate(Spec(), {1, 2}, cost::FindDevice("l4").value(), 1);
  EXPECT_DOUBLE_EQ(seconds(1, {1, 2}), estimate.Seconds(kBatch));
  EXPECT_EQ(costs->OverheadSeconds(cluster_.nodes[1]), 0);
  EXPECT_EQ(costs->Describe(cluster_),
            "mine measured (" + file_ + "); estimate from first principles for l4");
  EXPECT_EQ(NodeCosts().Describe(cluster_),
            "estimate from first principles for each node, not measured");
}

TEST_F(NodeCostsTest, MeasuredWorkersSendActivationsInF32) {
  const auto costs = NodeCosts::Load({"mine=" + file_}, cluster_, Spec());
  ASSERT_TRUE(costs.ok());
  ModelSpec spec = Spec();
  spec.dtype = DType::kBF16;
  EXPECT_EQ(costs->ActivationBytes(spec), 64 * 4);
  EXPECT_EQ(NodeCosts().ActivationBytes(spec), 64 * 2);
}

TEST_F(NodeCostsTest, SeveralMeasuredDevicesInANodeAreRefused) {
  const auto costs = NodeCosts::Load({"mine=" + file_}, cluster_, Spec());
  ASSERT_TRUE(costs.ok());
  EXPECT_EQ(costs->Of(cluster_.nodes[0], 2, Spec(), {0, 1}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(NodeCosts().Of(cluster_.nodes[0], 1, Spec(), {0, 1}).status().code(),
            StatusCode::kNotFound);
}

TEST_F(NodeCostsTest, ProfilesOfAnotherClusterOrModelAreRefused) {
  for (const std::string entry : {"mine", "mine=", "=file", ""}) {
    EXPECT_EQ(LoadStatus({entry}).message().rfind("--node-profile must be DEVICE=FILE", 0), 0u);
  }
  EXPECT_NE(LoadStatus({"a100-40gb=" + file_}).message().find("the cluster has l4, mine"),
            std::string::npos);
  EXPECT_NE(LoadStatus({"mine=" + file_, "mine=" + file_}).message().find("two profiles"),
            std::string::npos);
  EXPECT_FALSE(LoadStatus({"mine=" + file_ + "-none"}).ok());
  Write(Measured(kLayers + 1));
  EXPECT_NE(LoadStatus({"mine=" + file_}).message().find("which has 5 layers; the model has 4"),
            std::string::npos);
}

TEST_F(NodeCostsTest, TheClusterFilesOwnProfileIsOfOneNode) {
  cluster_.nodes[0].profile = cost::FormatProfileLine(Measured(kLayers));
  cluster_.nodes.push_back({.name = "third", .device = "l4"});
  const auto costs = NodeCosts::Load({}, cluster_, Spec());
  ASSERT_TRUE(costs.ok()) << costs.status().ToString();
  EXPECT_TRUE(costs->measured());
  EXPECT_NEAR(SecondsOf(*costs, cluster_.nodes[0]), 1e-3 + 8e-4, 1e-6);
  EXPECT_EQ(costs->OverheadSeconds(cluster_.nodes[0]), 3e-4);
  EXPECT_EQ(costs->OverheadSeconds(cluster_.nodes[1]), 0);
  const std::string described = costs->Describe(cluster_);
  EXPECT_EQ(described.find("1 of 3 nodes measured (as the cluster says); "), 0u) << described;
  // A file for the device comes first.
  cost::Profile slower = Measured(kLayers);
  slower.front_end->step_s = 1;
  Write(slower);
  const auto given = NodeCosts::Load({"mine=" + file_}, cluster_, Spec());
  ASSERT_TRUE(given.ok()) << given.status().ToString();
  EXPECT_EQ(given->OverheadSeconds(cluster_.nodes[0]), 1);
}

// A spare that has fetched its weights from others has measured nothing.
TEST_F(NodeCostsTest, ANodeWithoutAProfileIsTakenToBeLikeAnother) {
  cluster_.nodes[0].profile = cost::FormatProfileLine(Measured(kLayers));
  cost::Profile slow = Measured(kLayers);
  for (cost::ProfileSample& sample : slow.samples) {
    sample.step_s *= 2;
    sample.layers_s *= 2;
  }
  slow = cost::FitProfile(std::move(slow), {.tokens = {0}, .sequences = {0}}).value();
  cluster_.nodes.push_back(
      {.name = "slow", .device = "slow", .profile = cost::FormatProfileLine(slow)});
  cluster_.nodes.push_back({.name = "spare", .device = "mine"});
  cluster_.nodes.push_back({.name = "stranger", .device = "abacus"});
  const auto costs = NodeCosts::Load({}, cluster_, Spec());
  ASSERT_TRUE(costs.ok()) << costs.status().ToString();
  EXPECT_NEAR(SecondsOf(*costs, cluster_.nodes[3]), 1e-3 + 8e-4, 1e-6);
  EXPECT_NEAR(SecondsOf(*costs, cluster_.nodes[4]), 2 * (1e-3 + 8e-4), 1e-5);
  EXPECT_EQ(
      costs->Describe(cluster_),
      "2 of 5 nodes measured (as the cluster says); spare has no profile and is assumed to be "
      "like one; stranger has no profile and is assumed to be like slow; estimate from first "
      "principles for l4");
}

TEST_F(NodeCostsTest, ADamagedProfileOfTheClusterFileNamesItsNode) {
  cluster_.nodes[0].profile = "{}";
  EXPECT_EQ(LoadStatus({}).message().find("the profile of node 'one': "), 0u)
      << LoadStatus({}).message();
  cluster_.nodes[0].profile = cost::FormatProfileLine(Measured(kLayers + 1));
  EXPECT_EQ(LoadStatus({}).message(),
            "the profile of node 'one': measured with m, which has 5 layers; the model has 4");
  cost::Profile none = Measured(kLayers);
  none.step.model = cost::StepModel();
  cluster_.nodes[0].profile = cost::FormatProfileLine(none);
  EXPECT_NE(LoadStatus({}).message().find("cannot be of a real machine"), std::string::npos);
}

}  // namespace
}  // namespace millrace::apps
