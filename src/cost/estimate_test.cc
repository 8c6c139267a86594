// Devices, memory, links and the estimate from first principles.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/testing/source_path.h"
#include "cost/device_catalog.h"
#include "cost/distserve_cost.h"
#include "cost/first_principles_cost.h"
#include "cost/link_model.h"
#include "cost/memory_model.h"
#include "cost/step_model.h"

namespace millrace::cost {
namespace {

ModelSpec Opt(int layers, int hidden, int heads) {
  ModelSpec spec;
  spec.architecture = "OPTForCausalLM";
  spec.num_layers = layers;
  spec.hidden_size = hidden;
  spec.num_heads = spec.num_kv_heads = heads;
  spec.head_dim = hidden / heads;
  spec.intermediate_size = 4 * hidden;
  spec.vocab_size = 50272;
  spec.dtype = DType::kF16;
  return spec;
}

ModelSpec Llama70b() {
  ModelSpec spec;
  spec.architecture = "LlamaForCausalLM";
  spec.num_layers = 80;
  spec.hidden_size = 8192;
  spec.num_heads = 64;
  spec.num_kv_heads = 8;
  spec.head_dim = 128;
  spec.intermediate_size = 28672;
  spec.vocab_size = 32000;
  spec.dtype = DType::kF16;
  return spec;
}

int64_t Total(const ModelSpec& spec) {
  const ParameterCount c = CountParameters(spec);
  return c.layer * spec.num_layers + c.embedding + c.head;
}

TEST(MemoryModelTest, ParametersAreThePublishedOnes) {
  EXPECT_NEAR(static_cast<double>(Total(Llama70b())), 68.98e9, 0.01e9);
  ModelSpec opt = Opt(40, 5120, 40);
  opt.num_parameters = 12'853'000'000;  // head and embedding share one table
  EXPECT_NEAR(static_cast<double>(Total(opt)), 12.85e9, 0.03e9);
  EXPECT_EQ(CountParameters(opt).head, 0);
  // The architecture's name does not override the count.
  opt.architecture = "SomethingElse";
  EXPECT_EQ(Total(opt), CountParameters(opt).layer * 40 + int64_t{50272} * 5120);
}

TEST(MemoryModelTest, StagesAddUpToTheModel) {
  for (const ModelSpec& spec : {Llama70b(), Opt(40, 5120, 40)}) {
    const int64_t whole = StageWeightBytes(spec, {0, spec.num_layers});
    EXPECT_EQ(whole, Total(spec) * 2);
    int64_t sum = 0;
    for (int begin = 0; begin < spec.num_layers; begin += 7) {
      sum += StageWeightBytes(spec, {begin, std::min(begin + 7, spec.num_layers)});
    }
    EXPECT_EQ(sum, whole);
  }
  ModelSpec tied = Opt(40, 5120, 40);
  tied.num_parameters = 12'853'000'000;
  EXPECT_EQ(StageWeightBytes(tied, {0, 20}) + StageWeightBytes(tied, {20, 40}),
            StageWeightBytes(tied, {0, 40}) + int64_t{50272} * 5120 * 2);
}

TEST(MemoryModelTest, KvFitsInWhatTheWeightsLeave) {
  const ModelSpec spec = Llama70b();
  EXPECT_EQ(spec.KvBytesPerToken(1), 2 * 8 * 128 * 2);
  EXPECT_EQ(KvCapacityTokens(spec, {0, 80}, 80'000'000'000, 2048), 0);
  const int64_t tokens = KvCapacityTokens(spec, {0, 10}, 40'000'000'000, 2048);
  const int64_t used = StageWeightBytes(spec, {0, 10}) + WorkspaceBytes(spec, 2048) +
                       tokens * spec.KvBytesPerToken(10);
  EXPECT_LE(used, 36'000'000'000);
  EXPECT_GT(used + spec.KvBytesPerToken(10), 36'000'000'000);
}

TEST(DeviceCatalogTest, NamesAreFoundAsPeopleWriteThem) {
  EXPECT_EQ(FindDevice("a100-80gb")->memory_bytes, 80'000'000'000);
  EXPECT_EQ(FindDevice("A100_80GB")->name, "a100-80gb");
  EXPECT_EQ(FindDevice("A100")->name, "a100-40gb");
  EXPECT_EQ(FindDevice("V100")->name, "v100-16gb");
  EXPECT_EQ(FindDevice("RTX 4090")->name, "rtx4090");
  const auto missing = FindDevice("b300");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("h200-141gb"), std::string::npos);
  EXPECT_FALSE(FindDevice("").ok());
  std::set<std::string_view> names;
  for (const DeviceSpec& device : DeviceCatalog()) {
    EXPECT_TRUE(names.insert(device.name).second) << device.name;
    EXPECT_GT(device.flops, 0) << device.name;
    EXPECT_GT(device.memory_bytes_per_s, 0) << device.name;
    EXPECT_GT(device.link_bytes_per_s, 0) << device.name;
    EXPECT_GE(device.price_usd_per_hour, 0) << device.name;
  }
}

// The published fits of seven configurations on the A100-80GB against the estimate.
TEST(FirstPrinciplesCostTest, IsWithinAQuarterOfThePublishedFits) {
  const auto profile = DistServeProfile::Load(
      SourcePath("src/cost/testdata/distserve/profiler-a100-80g.distserve.json"));
  ASSERT_TRUE(profile.ok());
  const DeviceSpec a100 = FindDevice("a100-80gb").value();
  std::vector<double> estimated, published;
  for (const auto& [model, tp] : profile->Keys()) {
    const bool small = model.find("13b") != std::string::npos;
    const ModelSpec spec = small ? Opt(40, 5120, 40) : Opt(64, 9216, 72);
    const FirstPrinciplesCost estimate(spec, {0, spec.num_layers}, a100, tp);
    const DistServeCost fit(profile->Find(model, tp).value());
    std::vector<BatchShape> batches;
    for (int64_t length = 128; length <= 2048; length *= 2) {
      batches.push_back({.prefill_tokens = length,
                         .prefill_tokens_squared = length * length,
                         .prefill_sequences = 1});
    }
    for (int32_t sequences = 1; sequences <= 64; sequences *= 4) {
      batches.push_back(
          {.decode_sequences = sequences, .decode_context = int64_t{sequences} * 512});
    }
    for (const BatchShape& batch : batches) {
      estimated.push_back(estimate.Seconds(batch));
      published.push_back(fit.Seconds(batch));
      EXPECT_NEAR(estimated.back() / published.back(), 1, 0.27)
          << model << " TP" << tp << ", " << batch.prefill_tokens << " prompt tokens, "
          << batch.decode_sequences << " decodes";
    }
  }
  const RelativeErrors errors = ErrorsOf(estimated, published);
  EXPECT_LT(errors.p50, 0.08) << FormatErrors(errors);
  RecordProperty("errors", FormatErrors(errors));
}

TEST(FirstPrinciplesCostTest, StagesShareTheWork) {
  const ModelSpec spec = Llama70b();
  const DeviceSpec device = FindDevice("h100-80gb").value();
  const BatchShape batch = {.decode_sequences = 16, .decode_context = 16000};
  const double whole = FirstPrinciplesCost(spec, {0, 80}, device, 8).Seconds(batch);
  const double halves = FirstPrinciplesCost(spec, {0, 40}, device, 8).Seconds(batch) +
                        FirstPrinciplesCost(spec, {40, 80}, device, 8).Seconds(batch);
  EXPECT_NEAR(halves, whole, 1e-12);
  EXPECT_EQ(FirstPrinciplesCost(spec, {0, 80}, device, 8).Seconds({}), 0);
}

TEST(LinkModelTest, TheFitFindsLatencyAndBandwidth) {
  std::vector<TransferSample> samples;
  for (double bytes = 1024; bytes < 1e9; bytes *= 4) samples.push_back({bytes, 5e-5 + bytes / 2e9});
  const auto fit = FitLink(samples);
  ASSERT_TRUE(fit.ok());
  EXPECT_NEAR(fit->link.latency_s, 5e-5, 1e-10);
  EXPECT_NEAR(fit->link.bytes_per_s, 2e9, 1e3);
  EXPECT_NEAR(fit->link.Seconds(2e9), 1 + 5e-5, 1e-6);
  samples.resize(1);
  EXPECT_FALSE(FitLink(samples).ok());
}

// A disturbed measurement: time hardly grows with size. A bandwidth from it would be refused by
// whoever reads the profile.
TEST(LinkModelTest, NoiseIsNoBandwidth) {
  EXPECT_FALSE(FitLink(std::vector<TransferSample>{{64, 1e-3}, {4e6, 1e-3 + 1e-12}}).ok());
}

TEST(LinkModelTest, AllReduceIsARing) {
  const LinkTime link{1e-6, 1e9};
  EXPECT_EQ(AllReduceSeconds(link, 1, 1e6), 0);
  EXPECT_NEAR(AllReduceSeconds(link, 2, 1e6), 2 * (1e-6 + 0.5e-3), 1e-12);
  EXPECT_NEAR(AllReduceSeconds(link, 4, 1e6), 6 * (1e-6 + 0.25e-3), 1e-12);
}

TEST(LinkModelTest, PreemptionPricesAreTheTwoWays) {
  const auto cost =
      StepModel::Create({.tokens = {0}, .sequences = {}}, {.fixed_s = 0.01, .token_s = {1e-4}});
  ASSERT_TRUE(cost.ok());
  const LinkTime host{0, 1e10};
  const PreemptionPrice price = PriceOfPreemption(*cost, host, 1'000'000, 1000);
  EXPECT_NEAR(price.swap_s, 0.2, 1e-9);
  EXPECT_NEAR(price.recompute_s, 0.11, 1e-9);
  EXPECT_FALSE(price.SwapIsCheaper());
  EXPECT_TRUE(PriceOfPreemption(*cost, host, 100'000, 1000).SwapIsCheaper());
  EXPECT_NEAR(UsdPerMillionTokens(3.6, 1000), 1.0, 1e-12);
}

}  // namespace
}  // namespace millrace::cost
