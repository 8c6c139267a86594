// Tests the reader of availability traces: three formats and their errors.
#include "sim/load/availability.h"

#include <gtest/gtest.h>

namespace millrace::sim {
namespace {

// The start of SpotServe's segment A_S+O, with a changing load.
constexpr char kEvents[] =
    "# a comment\n"
    R"([0, "add", {"nodes": ["node-0", "node-1"]}])"
    "\n"
    R"([300000, "other", {"nodes": [], "required_tpt": 0.8}])"
    "\n"
    R"([600000, "remove", {"nodes": ["node-0"], "required_tpt": 0.6}])"
    "\n"
    R"([690000, "add", {"nodes": ["node-0"], "duration": 60000}])"
    "\n"
    R"([900000, "no-op", {"nodes": []}])"
    "\n"
    R"([1380000, "DONE", {"nodes": []}])"
    "\n";

TEST(AvailabilityTest, ReadsEvents) {
  const auto trace = ParseAvailability(kEvents);
  ASSERT_TRUE(trace.ok()) << trace.status().ToString();
  EXPECT_EQ(trace->end_s, 1380);
  EXPECT_EQ(trace->node_count, 3) << "a machine that comes back is a new one";
  EXPECT_EQ(trace->most_alive, 2);
  EXPECT_EQ(trace->fewest_alive, 1);
  ASSERT_EQ(trace->events.size(), 4u);
  EXPECT_EQ(trace->events[1].kind, AvailabilityKind::kLoad);
  EXPECT_EQ(trace->events[1].requests_per_s, 0.8);
  EXPECT_EQ(trace->events[2].requests_per_s, 0.6);
  EXPECT_EQ(trace->events[2].nodes, std::vector<int>{0});
  EXPECT_EQ(trace->events[3].nodes, std::vector<int>{2});
}

TEST(AvailabilityTest, ReadsCsvEventsAndCounts) {
  const auto events = ParseAvailability(
      "480000,add,node1\n540000,add,node2\n540000,add,node3\n"
      "600000,remove,node1\r\n");
  ASSERT_TRUE(events.ok()) << events.status().ToString();
  ASSERT_EQ(events->events.size(), 3u) << "lines of one moment are one event";
  EXPECT_EQ(events->events[1].nodes, (std::vector<int>{1, 2}));
  EXPECT_EQ(events->most_alive, 3);
  const auto counts = ParseAvailability("0.000,0\n5.980,0\n5.980,4\n6.5,3\n", 3600);
  ASSERT_TRUE(counts.ok()) << counts.status().ToString();
  ASSERT_EQ(counts->events.size(), 2u);
  EXPECT_NEAR(counts->events[0].at_s, 5.98 * 3600, 1e-6);
  EXPECT_EQ(counts->events[1].nodes, std::vector<int>{0}) << "the oldest leaves first";
}

TEST(AvailabilityTest, ErrorsNameTheLine) {
  const struct {
    const char *text, *part;
  } kCases[] = {
      {"", "never has a machine"},
      {"x", "line 1: must be ms,add|remove,node or time,count"},
      {"x,1", "line 1: \"x\" is not a number"},
      {"5,3\n4,2\n", "line 2: time 4 s comes before 5 s"},
      {"-5,3\n", "line 1: time -5 s must be in"},
      {"nan,3\n", "line 1: time nan s must be in"},
      {"5,2.5\n", "whole number"},
      {"5,1e9\n", "whole number in [0, 1024], got 1e+09"},
      {"0,add,a\n1,add,a\n", "line 2: \"a\" is already present"},
      {"0,remove,a\n", "line 1: \"a\" is not present"},
      {"0,gone,a\n", "\"gone\" is not a kind of event"},
      {"[0, \"add\"]", "must be [ms"},
      {"[0, \"add\", {\"nodes\": [1]}]", "list of names"},
      {"[0, \"add\", {}]", "list of names"},
      {"[0, \"went\", {\"nodes\": []}]", "\"went\" is not a kind"},
      {"[0, \"add\", {\"nodes\": [\"a\"], \"required_tpt\": 0}]", "above zero"},
      {"[0, \"add\"", "line 1: malformed JSON"},
  };
  for (const auto& c : kCases) {
    const auto trace = ParseAvailability(c.text);
    ASSERT_FALSE(trace.ok()) << c.text;
    EXPECT_NE(trace.status().message().find(c.part), std::string::npos) << trace.status().message();
  }
}

}  // namespace
}  // namespace millrace::sim
