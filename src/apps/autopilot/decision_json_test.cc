#include "apps/autopilot/decision_json.h"

#include <gtest/gtest.h>

#include "plan/io/plan_yaml.h"

namespace millrace::apps {
namespace {

using cluster::Decision;

std::shared_ptr<const WorkerPlan> SmallPlan(const std::string& model = "demo") {
  Plan plan{.model = model, .cluster = "here", .num_layers = 4};
  plan.stages = {{.nodes = {1}, .layers = {0, 4}}};
  return std::make_shared<const WorkerPlan>(WorkerPlan{plan, {"a", "b"}, "00c0ffee00c0ffee"});
}

Decision Full() {
  Decision decision{.id = 7,
                    .at_unix_s = 1.7e9,
                    .cause = cluster::DecisionCause::kNotice,
                    .why = "the cluster must give up b",
                    .kind = cluster::DecisionKind::kChange,
                    .reason = "better",
                    .workers = 3,
                    .search_s = 2.5,
                    .gain_per_s = 1.5,
                    .cost_requests = 4,
                    .epoch = 9,
                    .outcome = "verified"};
  decision.load = {.requests_per_s = 3,
                   .prompt_tokens = 100,
                   .output_tokens = 20,
                   .variation = 0.9,
                   .requests = 90};
  decision.current =
      cluster::PlanForecast{.shape = "a 0-3", .method = "in force", .requests_per_s = 2};
  decision.candidates = {
      {.shape = "a 0-1, b 2-3", .plan = SmallPlan(), .method = "flow", .requests_per_s = 4},
      {.shape = "b 0-3", .method = "single", .requests_per_s = 1}};
  decision.before = cluster::MeasuredService{.answers = 10, .within = 5, .missed_ttft = 5};
  decision.after = cluster::MeasuredService{.answers = 12, .within = 12, .answers_per_s = 3};
  return decision;
}

TEST(DecisionJson, ReadsWhatItWrites) {
  const Json json = ToJson(Full());
  EXPECT_EQ(ToJson(ReadDecision(json)), json);
  EXPECT_EQ(json["decision"], "change");
  EXPECT_EQ(json["cause"], "notice");
  EXPECT_EQ(json["candidates"][0]["plan"], plan::WritePlanYaml(*SmallPlan()));
  EXPECT_FALSE(json["candidates"][1].contains("plan"));
  const Json empty = ToJson(Decision{});
  EXPECT_EQ(ToJson(ReadDecision(empty)), empty);
}

TEST(DecisionJson, TheStoreGetsTheNewestThatFit) {
  std::vector<Decision> many;
  for (uint64_t id = 1; id <= 60; ++id) {
    many.push_back(Full());
    many.back().id = id;
    many.back().candidates.front().plan = SmallPlan(std::string(20'000, 'x'));
  }
  const std::string text = StoredDecisions(many);
  EXPECT_LE(text.size(), 512u << 10);
  const auto read = ReadStoredDecisions(text);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_GT(read->size(), 20u);
  EXPECT_EQ(read->back().id, 60u);
  EXPECT_EQ(read->front().id, 60 - read->size() + 1);
}

TEST(DecisionJson, WhatIsNoDecisionIsRefusedOrEmpty) {
  EXPECT_FALSE(ReadStoredDecisions("{\"id\": 1}\nnot json\n").ok());
  EXPECT_FALSE(ReadStoredDecisions("[1]\n").ok());
  EXPECT_TRUE(ReadStoredDecisions("")->empty());
  const Decision odd = ReadDecision(
      Json::parse(R"({"id": "x", "decision": 3, "load": [], "candidates": [1, {"shape": 2}]})"));
  EXPECT_EQ(odd.id, 0u);
  EXPECT_EQ(odd.candidates.size(), 1u);
  const Decision unread = ReadDecision(Json::parse(R"({"candidates": [{"plan": "stages: 7"}]})"));
  EXPECT_FALSE(unread.candidates.front().plan);
}

TEST(DecisionJson, TextForPeople) {
  const std::string text = DecisionText(Full(), true);
  EXPECT_NE(text.find("  change  (notice: the cluster must give up b)\n      better\n      "
                      "verified\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("  in force        2 req/s  a 0-3\n"), std::string::npos) << text;
  EXPECT_NE(text.find("  found           4 req/s  a 0-1, b 2-3\n"), std::string::npos) << text;
  EXPECT_EQ(DecisionText(Full(), false).find("found"), std::string::npos);
  Decision simulated = Full();
  simulated.at_unix_s = 3755.9;
  EXPECT_TRUE(DecisionText(simulated, false, DecisionTimes::kSinceStart)
                  .starts_with("   7  1:02:35  change  (notice: "));
}

}  // namespace
}  // namespace millrace::apps
