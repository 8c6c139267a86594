#include "cluster/control/parts/edge_flows.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace::cluster {
namespace {

using Key = EdgeFlows::Key;

Key HandOver(const std::string& from) { return {from, "d", EdgePhase::kHandOver}; }

TEST(EdgeFlows, AddsWhatAClosedPipelineCarriedAlongEachEdge) {
  EdgeFlows flows;
  const auto edges = flows.Opened(StageRole::kPrefill, {"a", "b"});
  EXPECT_EQ(edges, (std::vector<Key>{{"coordinator", "a", EdgePhase::kPrefill},
                                     {"a", "b", EdgePhase::kPrefill},
                                     {"b", "coordinator", EdgePhase::kPrefill}}));
  EXPECT_EQ(flows.Added().size(), 3u) << "an open pipeline's edges are there";
  flows.Closed(edges, {.tokens = 10, .requests = 2});
  const auto again = flows.Opened(StageRole::kPrefill, {"a"});
  flows.Closed(again, {.tokens = 5, .requests = 1});
  const EdgeFlows::Table table = flows.Added();
  EXPECT_EQ(table.at(edges[0]).tokens, 15) << "both pipelines begin at a";
  EXPECT_EQ(table.at(edges[0]).requests, 3);
  EXPECT_EQ(table.at(edges[1]).tokens, 10);
}

TEST(EdgeFlows, PhasesAreApart) {
  EdgeFlows flows;
  flows.Closed(flows.Opened(StageRole::kBoth, {"a"}), {.tokens = 1});
  flows.Closed(flows.Opened(StageRole::kDecode, {"a"}), {.tokens = 2});
  EXPECT_EQ(flows.Added().at({"coordinator", "a", EdgePhase::kBoth}).tokens, 1);
  EXPECT_EQ(flows.Added().at({"coordinator", "a", EdgePhase::kDecode}).tokens, 2);
}

// Workers with ever new names come and go.
TEST(EdgeFlows, ForgetsEdgesWithoutPipelinesWhenThereAreTooMany) {
  EdgeFlows flows(4);
  const auto open = flows.Opened(StageRole::kBoth, {"a"});
  for (const char* name : {"p1", "p2", "p3", "p4"}) {
    flows.Add(HandOver(name), {.tokens = 7, .requests = 1, .bytes = 70, .seconds = 0.5});
  }
  EdgeFlows::Table table = flows.Added();
  EXPECT_EQ(table.size(), 4u);
  EXPECT_TRUE(table.contains(open[0]) && table.contains(open[1])) << "a pipeline is there";
  EXPECT_FALSE(table.contains(HandOver("p1")));
  EXPECT_EQ(table.at(HandOver("p4")).bytes, 70);
}

TEST(EdgeFlows, FurtherEdgesAreCountedTogetherWhenAllAreInUse) {
  EdgeFlows flows(2);
  (void)flows.Opened(StageRole::kBoth, {"a"});
  const auto more = flows.Opened(StageRole::kBoth, {"b", "c"});
  const Key other{"other", "other", EdgePhase::kBoth};
  EXPECT_EQ(more, std::vector<Key>(3, other));
  flows.Closed(more, {.tokens = 5, .requests = 1});
  flows.Add(HandOver("p"), {.tokens = 3});
  EXPECT_EQ(flows.Added().at(other).tokens, 15) << "5 along each of three edges";
  EXPECT_EQ(flows.Added().at({"other", "other", EdgePhase::kHandOver}).tokens, 3);
  EXPECT_EQ(flows.Added().size(), 4u);
}

}  // namespace
}  // namespace millrace::cluster
