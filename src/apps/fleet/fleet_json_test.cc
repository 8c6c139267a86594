// A fleet as JSON, text and metrics.
#include "apps/fleet/fleet_json.h"

#include <gtest/gtest.h>

namespace millrace::apps {
namespace {

cluster::FleetSpec SomeSpec() {
  cluster::FleetSpec spec;
  spec.kinds = {{.name = "spot", .provider = cluster::FleetProvider::kExec, .spot = true, .max = 4},
                {.name = "own", .max = 2}};
  spec.budget_usd_per_h = 4;
  return spec;
}

cluster::FleetStatus SomeStatus() {
  cluster::FleetStatus status;
  status.kinds = {
      {.wanted = 3, .serving = 2, .on_order = 1, .usd_per_h = 0.35, .trouble = "slow\n"},
      {.serving = 1}};
  status.usd_per_h = 0.7;
  status.usd_per_million_tokens_hour = 0.25;
  status.shortage = cluster::MixShortage::kBudget;
  status.events = {{.at_unix_s = 1.7e9, .cause = cluster::FleetCause::kLoad, .text = "asks for 1"}};
  return status;
}

TEST(FleetJsonTest, WhatIsNotKnownIsNullAndNoNumber) {
  const Json json = FleetJson(SomeSpec(), SomeStatus());
  EXPECT_EQ(json["kinds"][0]["wanted"], 3);
  EXPECT_EQ(json["kinds"][0]["usd_per_h"], 0.35);
  EXPECT_TRUE(json["kinds"][1]["wanted"].is_null());
  EXPECT_TRUE(json["kinds"][1]["usd_per_h"].is_null());
  EXPECT_TRUE(json["usd_per_million_tokens"].is_null());
  EXPECT_EQ(json["short_of"], "budget");
  EXPECT_EQ(json["events"][0]["cause"], "load");
}

TEST(FleetJsonTest, TextForPeople) {
  const std::string text = FleetText(FleetJson(SomeSpec(), SomeStatus()));
  const auto has = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has("spot  exec       0.35       3        2         1")) << text;
  EXPECT_TRUE(has("own   none          -       -        1")) << text;
  EXPECT_TRUE(has("spot: slow\\n\n")) << text;
  EXPECT_TRUE(has("cost 0.7 USD/h of 4; per million tokens - USD now, 0.25 USD over")) << text;
  EXPECT_TRUE(has("asks for 1 (load)")) << text;
  EXPECT_NO_THROW(FleetText(Json{{"kinds", 3}, {"events", {1, 2}}}));
}

TEST(FleetJsonTest, MetricsLeaveOutWhatIsNotKnown) {
  std::vector<serve::ClusterMetric> metrics;
  AddFleetMetrics(SomeSpec(), SomeStatus(), metrics);
  ASSERT_EQ(metrics.size(), 4U);
  EXPECT_EQ(metrics[0].name, "millrace_wanted_workers");
  ASSERT_EQ(metrics[0].series.size(), 1U) << "of the other kind it is not known yet";
  EXPECT_EQ(metrics[0].series[0].labels.at("kind"), "spot");
  EXPECT_EQ(metrics[1].series.size(), 8U);
  EXPECT_EQ(metrics[3].series.size(), 1U);
  EXPECT_EQ(metrics[3].series[0].labels.at("window"), "hour");
}

}  // namespace
}  // namespace millrace::apps
