#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/sha256.h"

namespace millrace::model {
namespace {

RopeConfig Read(const Json& json, int head_dim, int max_position) {
  ConfigReader reader(json, "config.json");
  RopeConfig config = ReadRope(reader, head_dim, max_position);
  EXPECT_TRUE(reader.status().ok()) << reader.status().ToString();
  return config;
}

TEST(Rope, PlainTableIsCosAndSinOfPositionTimesFrequency) {
  const RopeConfig config = Read({{"rope_theta", 100.0}}, 8, 32);
  const RopeTables tables(config, 32);
  ASSERT_EQ(tables.view().positions, 32);
  ASSERT_EQ(tables.view().rotary_dim, 8);
  for (int p = 0; p < 32; ++p) {
    for (int i = 0; i < 4; ++i) {
      const double angle = p * std::pow(100.0, -2.0 * i / 8);
      EXPECT_NEAR(tables.view().cos[p * 4 + i], std::cos(angle), 2e-5);
      EXPECT_NEAR(tables.view().sin[p * 4 + i], std::sin(angle), 2e-5);
    }
  }
}

TEST(Rope, OldAndNewSpellingAgreeAndScalingWins) {
  const RopeConfig old_names =
      Read({{"rope_theta", 500.0}, {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}, 8, 32);
  const RopeConfig new_names =
      Read({{"rope_parameters", {{"rope_theta", 500.0}, {"rope_type", "linear"}, {"factor", 2}}}},
           8, 32);
  EXPECT_EQ(InverseFrequencies(old_names, 0), InverseFrequencies(new_names, 0));
  const RopeConfig both = Read({{"rope_theta", 500.0},
                                {"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
                                {"rope_parameters", {{"rope_type", "linear"}, {"factor", 8}}}},
                               8, 32);
  EXPECT_EQ(InverseFrequencies(both, 0), InverseFrequencies(old_names, 0));
}

// Within the original length nothing is scaled. Beyond it, each position rotates with the base for
// the text that ends there, whatever table it is read from.
TEST(Rope, DynamicIsAFunctionOfThePosition) {
  const Json json = {{"rope_theta", 100.0},
                     {"rope_scaling", {{"type", "dynamic"}, {"factor", 4.0}}}};
  const RopeConfig config = Read(json, 16, 32);
  RopeConfig plain = config;
  plain.type = RopeType::kDefault;
  EXPECT_EQ(InverseFrequencies(config, 31), InverseFrequencies(plain, 0));
  EXPECT_NE(InverseFrequencies(config, 32), InverseFrequencies(plain, 0));
  const double base = 100.0 * std::pow(4.0 * 48 / 32 - 3, 16.0 / 14);
  EXPECT_NEAR(InverseFrequencies(config, 47)[3], std::pow(base, -6.0 / 16), 1e-6);
  const RopeTables small(config, 50), large(config, 128);
  for (int i = 0; i < 50 * 8; ++i) ASSERT_EQ(small.view().cos[i], large.view().cos[i]) << i;
}

TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  const Json json = {{"rope_theta", 500000.0},
                     {"rope_scaling",
                      {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}}}};
  const RopeConfig config = Read(json, 128, 131072);
  RopeConfig plain = config;
  plain.type = RopeType::kDefault;
  const std::vector<float> scaled = InverseFrequencies(config, 0),
                           unscaled = InverseFrequencies(plain, 0);
  EXPECT_EQ(scaled.front(), unscaled.front());
  EXPECT_FLOAT_EQ(scaled.back(), unscaled.back() / 8);
  for (size_t i = 0; i < scaled.size(); ++i) {
    EXPECT_LE(scaled[i], unscaled[i]);
    EXPECT_GE(scaled[i], unscaled[i] / 8 * 0.9999f);
  }
}

// Angles are part of the definition of the bits, with every C library. Whoever changes one needs a
// new version of the definition (docs/decisions/0038-small-factors-are-zero.md).
TEST(Rope, AnglesHaveTheBitsOfTheDefinition) {
  Sha256 digest;
  for (double theta : {10'000.0, 500'000.0, 1'000'000.0}) {
    const RopeConfig config{.rotary_dim = 128, .theta = theta};
    const RopeTables tables(config, 256);
    const size_t bytes = RopeTables::BytesFor(config, 256) / 2;
    digest.Add(tables.view().cos, bytes);
    digest.Add(tables.view().sin, bytes);
  }
  EXPECT_EQ(Hex(digest.Take()).substr(0, 16), "dfeef6fbb0678d98");
}

TEST(Rope, YarnAttentionFactorScalesTheTable) {
  Json scaling = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  const RopeConfig config = Read({{"rope_theta", 100.0}, {"rope_scaling", scaling}}, 16, 128);
  EXPECT_NEAR(config.attention_factor, 0.1 * std::log(4.0) + 1, 1e-9);
  const RopeTables tables(config, 1);
  EXPECT_FLOAT_EQ(tables.view().cos[0], static_cast<float>(config.attention_factor));
  scaling["mscale"] = 1.0;
  scaling["mscale_all_dim"] = 1.0;
  EXPECT_NEAR(Read({{"rope_scaling", scaling}}, 16, 128).attention_factor, 1.0, 1e-9);
  scaling["attention_factor"] = 1.25;
  EXPECT_NEAR(Read({{"rope_scaling", scaling}}, 16, 128).attention_factor, 1.25, 1e-9);
}

}  // namespace
}  // namespace millrace::model
