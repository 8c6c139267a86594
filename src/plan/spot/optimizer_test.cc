// The optimizer: the published decisions, agreement with an exhaustive search, and the tie band.
#include "plan/spot/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <tuple>

#include "plan/spot/testing.h"

namespace millrace::plan::spot {
namespace {

struct Golden {
  int devices;
  ParallelConfig config;  // M1 = B, M2 = 1 throughout
  int ms;
  double throughput;
  bool fallback = false;
};

// Computed from the released solver and profiles; the paper prints parts of it.
const Golden kOpt[] = {
    {4, {1, 1, 4, 4, 4}, 5290, .756, true}, {8, {2, 1, 4, 4, 4}, 5290, 1.512, true},
    {12, {3, 1, 4, 4, 4}, 5290, 2.268},     {16, {4, 1, 4, 4, 4}, 5290, 3.025},
    {20, {5, 1, 4, 2, 2}, 4889, 2.045},     {24, {6, 1, 4, 2, 2}, 4889, 2.455},
    {28, {7, 1, 4, 2, 2}, 4889, 2.864},     {32, {8, 1, 4, 2, 2}, 4889, 3.273},
    {36, {9, 1, 4, 2, 2}, 4889, 3.682},     {40, {5, 2, 4, 2, 2}, 4729, 2.114},
    {44, {5, 2, 4, 2, 2}, 4729, 2.114},     {48, {6, 2, 4, 2, 2}, 4729, 2.537}};
const Golden kGpt[] = {
    {12, {1, 3, 4, 4, 4}, 14459, .277, true}, {16, {1, 2, 8, 4, 4}, 12961, .309, true},
    {20, {1, 2, 8, 4, 4}, 12961, .309, true}, {24, {2, 3, 4, 4, 4}, 14459, .553},
    {28, {2, 3, 4, 4, 4}, 14459, .553},       {32, {2, 2, 8, 4, 4}, 12961, .617},
    {36, {2, 2, 8, 4, 4}, 12961, .617},       {40, {2, 2, 8, 4, 4}, 12961, .617},
    {44, {2, 2, 8, 4, 4}, 12961, .617},       {48, {3, 2, 8, 2, 2}, 12116, .495}};
const Golden kLlama[] = {{16, {1, 2, 8, 4, 4}, 17751, .225}, {20, {1, 2, 8, 4, 4}, 17751, .225},
                         {24, {1, 3, 8, 4, 4}, 17498, .229}, {28, {1, 3, 8, 4, 4}, 17498, .229},
                         {32, {1, 4, 8, 4, 4}, 17383, .230}, {36, {1, 4, 8, 4, 4}, 17383, .230},
                         {40, {1, 4, 8, 4, 4}, 17383, .230}, {44, {1, 4, 8, 4, 4}, 17383, .230},
                         {48, {1, 6, 8, 4, 4}, 17291, .231}};

void ExpectGolden(const char* model, int devices_min, double load, std::span<const Golden> rows) {
  const Profile profile = PublishedProfile(model);
  for (const Golden& row : rows) {
    const auto got = OptimizeAsPublished(profile, {.devices_min = devices_min}, row.devices, load);
    ASSERT_TRUE(got.has_value()) << model << " " << row.devices;
    EXPECT_EQ(got->config, row.config) << model << " " << row.devices << ToString(got->config);
    EXPECT_EQ(std::lround(got->execution_ms), row.ms) << model << " " << row.devices;
    EXPECT_NEAR(got->throughput_per_s, row.throughput, 0.0005) << model << " " << row.devices;
    EXPECT_EQ(got->carries_load, !row.fallback) << model << " " << row.devices;
  }
  EXPECT_FALSE(OptimizeAsPublished(profile, {.devices_min = devices_min}, devices_min - 1, load)
                   .has_value());
}

TEST(SpotOptimizerTest, PublishedDecisions) {
  ExpectGolden("6.7B", 4, 2, kOpt);
  ExpectGolden("h6144", 12, 0.4, kGpt);
  ExpectGolden("h7168", 16, 0.2, kLlama);
}

// The lowest cost over everything, as plain loops over a differently shaped space.
struct ByHand {
  std::optional<double> least_ms;  // of the candidates that carry the load
  double most_per_s = 0;
  std::optional<int> fewest_instances;  // within the band of least_ms
};

ByHand SearchByHand(const Profile& p, const SearchSpace& space, int devices, double load,
                    double band) {
  std::vector<std::tuple<double, int>> carrying;  // ms, instances
  ByHand by_hand;
  for (int pp = 1; pp <= devices; ++pp) {
    for (int log_m = 0; log_m < 5; ++log_m) {
      const int m = 1 << log_m;
      if (p.padded_layers % pp != 0 || m > p.tensor_max || pp * m > devices ||
          pp * m < space.devices_min) {
        continue;
      }
      for (const int b : {1, 2, 4, 8}) {
        if (b > space.batch_max) continue;
        for (const int m1 : {1, 2, 4, 8}) {
          for (const int m2 : {1, 2, 4, 8}) {
            if (m1 > b || m2 > b || !p.At(m, b / m1) || !p.At(m, b / m2)) continue;
            const int f = (p.layers + pp - 1) / pp;
            const double t1 = p.At(m, b / m1)->prefill_ms * f * (pp + m1 - 1) / m1 +
                              p.stage_prefill_ms / m1 * (pp - 1);
            const double t2 =
                p.At(m, b / m2)->decode_ms * f * (pp + m2 - 1) + p.stage_decode_ms / m2 * (pp - 1);
            const double ms =
                (t1 + t2 * space.output_tokens + 2 * p.embed_ms[std::log2(b)]) * p.overhead_factor;
            for (int d = 1; d * pp * m <= devices; ++d) {
              const double phi = d * b / ms * 1000;
              by_hand.most_per_s = std::max(by_hand.most_per_s, phi);
              const int per = space.devices_per_instance;
              if (phi >= load) carrying.push_back({ms, (d * pp * m + per - 1) / per});
            }
          }
        }
      }
    }
  }
  for (const auto& [ms, n] : carrying) {
    if (!by_hand.least_ms || ms < *by_hand.least_ms) by_hand.least_ms = ms;
  }
  for (const auto& [ms, n] : carrying) {
    if (ms > *by_hand.least_ms * (1 + band)) continue;
    if (!by_hand.fewest_instances || n < *by_hand.fewest_instances) by_hand.fewest_instances = n;
  }
  return by_hand;
}

TEST(SpotOptimizerTest, AgreesWithSearchByHandOnRandomProfiles) {
  int carried = 0, fell_back = 0, banded = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    const Profile profile = RandomProfile(rng);
    const SearchSpace space{.devices_min = static_cast<int>(rng.Between(1, 8)),
                            .batch_max = 1 << rng.Between(0, 3),
                            .output_tokens = static_cast<int>(rng.Between(1, 200)),
                            .devices_per_instance = static_cast<int>(rng.Between(1, 4))};
    const int devices = static_cast<int>(rng.Between(1, 32));
    const double load = 3 * rng.Uniform() * rng.Uniform();
    const ByHand by_hand = SearchByHand(profile, space, devices, load, 0.05);
    const auto published = OptimizeAsPublished(profile, space, devices, load);
    const auto ours = Optimize(profile, space, devices, load, {});
    ASSERT_EQ(published.has_value(), by_hand.most_per_s > 0) << seed;
    ASSERT_EQ(ours.has_value(), published.has_value()) << seed;
    if (!ours.has_value()) continue;
    ASSERT_EQ(published->carries_load, by_hand.least_ms.has_value()) << seed;
    ASSERT_EQ(ours->carries_load, by_hand.least_ms.has_value()) << seed;
    if (!by_hand.least_ms) {
      ++fell_back;
      ASSERT_NEAR(published->throughput_per_s, by_hand.most_per_s, 1e-9) << seed;
      ASSERT_GE(ours->throughput_per_s, by_hand.most_per_s * 0.95 - 1e-9) << seed;
      continue;
    }
    ++carried;
    ASSERT_NEAR(published->execution_ms, *by_hand.least_ms, 1e-6) << seed;
    ASSERT_LE(ours->execution_ms, *by_hand.least_ms * 1.05 + 1e-6) << seed;
    const int instances = Instances(ours->config, space.devices_per_instance);
    ASSERT_EQ(instances, *by_hand.fewest_instances) << seed;
    banded += instances < Instances(published->config, space.devices_per_instance);
  }
  EXPECT_GT(carried, 200);
  EXPECT_GT(fell_back, 100);
  EXPECT_GT(banded, 50) << "the band must matter somewhere";
}

// The problem of the strict minimum: it takes 48 GPUs in one pipeline to save 2.6 % of latency.
TEST(SpotOptimizerTest, TieBandTakesFewerInstances) {
  const SearchSpace space{.devices_min = 16, .devices_per_instance = 4};
  const Profile llama = PublishedProfile("h7168");
  const auto strict = Optimize(llama, space, 48, 0.2, {.tie_band = 0});
  const auto banded = Optimize(llama, space, 48, 0.2, {});
  EXPECT_EQ(Instances(strict->config, 4), 12);
  EXPECT_EQ(Instances(banded->config, 4), 4);
  EXPECT_LE(banded->execution_ms, strict->execution_ms * 1.05);
}

}  // namespace
}  // namespace millrace::plan::spot
