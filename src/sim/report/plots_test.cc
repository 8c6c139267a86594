#include "sim/report/plots.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "sim/report/svg.h"

namespace millrace::sim {
namespace {

size_t Count(const std::string& text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Every opening tag has a closing tag, in order; attributes are quoted.
void ExpectWellFormed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    EXPECT_EQ(Count(tag, "\"") % 2, 0u) << tag;
    if (tag.back() == '/') continue;
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(SvgTest, EscapesTextAndRounds) {
  Svg svg(10, 20);
  svg.Text(1.04, -0.001, "a < b & \"c\"\n");
  const std::string text = svg.Finish();
  EXPECT_NE(text.find("x=\"1\" y=\"0\""), std::string::npos) << text;
  EXPECT_NE(text.find("a &lt; b &amp; &quot;c&quot; "), std::string::npos) << text;
  ExpectWellFormed(text);
}

TEST(LineChartTest, PutsPointsWhereTheyBelong) {
  const std::string svg =
      LineChart({.title = "t", .y_max = 10, .dots = true}, {{"a", {{0, 0}, {5, 10}, {10, 20}}}});
  ExpectWellFormed(svg);
  // From the origin to the upper edge in the middle, and never above it.
  EXPECT_NE(svg.find("points=\"76,384 386,44 696,44\""), std::string::npos) << svg;
  EXPECT_EQ(Count(svg, "<circle"), 3u);
}

TEST(LineChartTest, SurvivesNothingAndOnePoint) {
  for (const bool log_x : {false, true}) {
    ExpectWellFormed(LineChart({.log_x = log_x}, {}));
    ExpectWellFormed(LineChart({.log_x = log_x}, {{"a", {{3, 0}}}}));
  }
  Quantiles quantiles;
  for (int i = 0; i < 100; ++i) quantiles.Add(i * 1e-3);
  const Series cdf = CdfOf("ttft", quantiles);
  EXPECT_EQ(cdf.points.back().second, 1);
  EXPECT_NEAR(cdf.points.back().first, 99, 0.1);
  ExpectWellFormed(LineChart({.log_x = true, .vertical = {{"limit", 50}}}, {cdf}));
}

Timeline TwoStages() {
  Timeline timeline(3);
  for (int i = 0; i < 4; ++i) {
    StepRecord record;
    record.id = StepId(i);
    record.batch = {.prefill_tokens = i == 0 ? 64 : 0, .decode_sequences = i == 0 ? 0 : 7};
    for (int s = 0; s < 2; ++s) {
      record.begin.push_back(Time{} + Duration::Millis(10 * (i + s)));
      record.end.push_back(Time{} + Duration::Millis(10 * (i + s) + 8));
    }
    timeline.Add(0, record);
  }
  return timeline;
}

TEST(TimelineTest, DrawsABoxPerStepAndStage) {
  const Timeline timeline = TwoStages();
  EXPECT_EQ(timeline.left_out(), 1u);
  const std::string svg = TimelineSvg(timeline, 0, 0.05);
  ExpectWellFormed(svg);
  EXPECT_EQ(Count(svg, "<rect"), 1 + 3 + 3 * 2u);  // background, key, boxes
  EXPECT_EQ(Count(svg, "#e8953c"), 1 + 2u);        // prompts: the key and the first step's boxes
  EXPECT_NE(svg.find("instance 0, stage 1"), std::string::npos);
  // Step 1 at stage 1: 20 to 28 ms of 50 ms on 1000 pixels.
  EXPECT_NE(svg.find("<rect x=\"550\" y=\"96\" width=\"159\""), std::string::npos) << svg;
}

TEST(TimelineTest, ChromeTraceIsJson) {
  const auto json = ParseJson(ChromeTrace(TwoStages()));
  ASSERT_TRUE(json.ok()) << json.status().ToString();
  const Json& events = (*json)["traceEvents"];
  ASSERT_EQ(events.size(), 3 + 6u);
  EXPECT_EQ(events[3]["ph"], "X");
  EXPECT_EQ(events[4]["tid"], 1);
  EXPECT_EQ(events[4]["ts"], 10000);
  EXPECT_EQ(events[4]["dur"], 8000);
  EXPECT_EQ(events[4]["args"]["prompt_tokens"], 64);
  const auto empty = ParseJson(ChromeTrace(Timeline(1)));
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE((*empty)["traceEvents"].empty());
}

}  // namespace
}  // namespace millrace::sim
