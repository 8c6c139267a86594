// The reader of SpotServe's profiles and its latency formula.
#include <gtest/gtest.h>

#include "base/json.h"
#include "plan/spot/testing.h"

namespace millrace::plan::spot {
namespace {

// Section 1.2 of the artifact: one request, 128 tokens; equals the paper's table.
TEST(SpotProfileTest, SingleRequestLatencies) {
  const struct {
    const char* model;
    int pipeline, tensor;
    double ms;
  } kGolden[] = {{"6.7B", 1, 4, 5447.33}, {"h6144", 3, 4, 14372.83}, {"h7168", 2, 8, 17539.87}};
  for (const auto& golden : kGolden) {
    const Profile profile = PublishedProfile(golden.model);
    const auto time = Execution(profile, {1, golden.pipeline, golden.tensor, 1, 1, 1});
    ASSERT_TRUE(time.has_value());
    EXPECT_NEAR(time->Total(128), golden.ms, 0.005) << golden.model;
  }
}

TEST(SpotProfileTest, ReadsEveryCell) {
  const Profile profile = PublishedProfile("h6144");
  EXPECT_EQ(profile.layers, 44);
  EXPECT_EQ(profile.padded_layers, 48);
  EXPECT_EQ(profile.tensor_max, 8);
  ASSERT_TRUE(profile.At(8, 4).has_value());
  EXPECT_EQ(profile.At(8, 4)->prefill_ms, 80.624);
  EXPECT_EQ(profile.At(8, 4)->decode_ms, 1.932);
  EXPECT_FALSE(profile.At(32, 1).has_value());
}

TEST(SpotProfileTest, MissingCellHasNoLatency) {
  const Profile profile = PublishedProfile("h7168");
  EXPECT_FALSE(Execution(profile, {1, 1, 16, 1, 1, 1}).has_value());
  EXPECT_FALSE(Execution(profile, {1, 1, 1, 16, 1, 1}).has_value());
}

TEST(SpotProfileTest, WrongFilesGetOneLine) {
  const auto broken = [](const char* key, Json value) {
    Json root = Json::parse(ProfileText("6.7B"));
    root[key] = std::move(value);
    return root.dump();
  };
  const struct {
    std::string text, part;
  } kCases[] = {
      {"", "profile: malformed JSON at byte 1"},
      {"[]", "must be a JSON object"},
      {"{}", "\"layer_num\" is missing"},
      {broken("layer_num", 0), "\"layer_num\" must be a whole number in [1, 1024], got 0"},
      {broken("layer_num", 1.5), "got 1.5"},
      {broken("padded_layer_num", 31), "[32, 2048], got 31"},
      {broken("final_fix_factor", 0), "above zero"},
      {broken("final_fix_factor", -1), "[0, 1000], got -1"},
      {broken("embed", Json::array()), "\"embed\" must be a list"},
      {broken("embed", Json::array({"x"})), "\"embed\" must be a number"},
      {broken("tp-3", Json::object()), "\"tp-3\" must be tp- and a power of two"},
      {broken("tp-", Json::object()), "power of two"},
      {broken("tp-99999999999999999999", Json::object()), "power of two"},
      {broken("tp-4", 3), "\"tp-4\" must be an object"},
      {broken("tp-4", {{"bsz-1", {{"init", 1}}}}), "\"incr\" is missing"},
      {broken("tp-4", {{"bsz-1", {{"init", 1}, {"incr", 0}}}}), "above zero"},
      {broken("tp-4", {{"other", {{"init", 1}, {"incr", 1}}}}), "bsz-1"},
  };
  for (const auto& c : kCases) {
    const auto profile = ParseProfile(c.text);
    ASSERT_FALSE(profile.ok()) << c.text.substr(0, 80);
    EXPECT_NE(profile.status().message().find(c.part), std::string::npos)
        << profile.status().message();
    EXPECT_EQ(profile.status().message().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace millrace::plan::spot
