// What the controller says of stages, edges and waiting requests.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cluster/control/flow_status.h"
#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

class Described : public ScriptedWorkers {
 protected:
  static constexpr int kPrompt = 10, kAnswer = 4;

  EdgeStatus Edge(const std::string& from, const std::string& to, EdgePhase phase) const {
    for (const EdgeStatus& edge : Describe().edges) {
      if (edge.from == from && edge.to == to && edge.phase == phase) return edge;
    }
    ADD_FAILURE() << "no edge from " << from << " to " << to;
    return {};
  }
  void EndSteps() {
    while (!steps_.empty()) EndStep(steps_.front().first);
  }
};

TEST_F(Described, EdgesCountWhatWasSentBesideWhatWasPlanned) {
  Plan plan = Chains({{kAll, kBoth}, {kAll, kBoth}});
  plan.edges[0].tokens_per_s = plan.edges[1].tokens_per_s = 2;
  plan.tokens_per_s = 3;
  Start(std::move(plan));
  Join(1);
  Join(2);
  ASSERT_EQ(Describe().edges.size(), 4u) << "also before the first request";
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(Submit(id, kPrompt, 1, kAnswer).ok());
  EXPECT_EQ(Describe().edges[0].since_start.requests, 2);
  EXPECT_EQ(Describe().edges[0].since_start.tokens, 0) << "nothing is computed yet";
  EndSteps();
  const std::vector<EdgeStatus> edges = Describe().edges;
  EXPECT_EQ(edges[0].from, "coordinator");
  EXPECT_EQ(edges[0].to, "w1");
  EXPECT_TRUE(edges[0].planned);
  EXPECT_EQ(edges[0].planned_tokens_per_s, 2);
  EXPECT_EQ(edges[0].since_start.tokens, 2 * (kPrompt + kAnswer));
  EXPECT_EQ(edges[3].from, "w2");
  EXPECT_EQ(edges[3].since_start.tokens, kPrompt + kAnswer);
}

TEST_F(Described, EdgesGoOnWithTheNextPipelineAndTheNextPlan) {
  Start(Chains({{kAll, kBoth}}));
  Join(1);
  ASSERT_TRUE(Submit(1, kPrompt, 1, kAnswer).ok());
  EndStep(1);
  EndStep(1);
  Lose(1);
  Join(1);
  EndSteps();
  const int64_t tokens = kPrompt + kAnswer;
  EXPECT_EQ(Edge("coordinator", "w1", EdgePhase::kBoth).since_plan.tokens, tokens)
      << "the prompt counts once although it was computed twice, and so does each token";
  EXPECT_EQ(Edge("coordinator", "w1", EdgePhase::kBoth).since_plan.requests, 2);
  Plan plan = Chains({{kFront, kBoth}, {kBack, kBoth}});
  Join(2);
  ASSERT_TRUE(c_->ApplyPlan(std::move(plan), {"w1", "w2"}).ok());
  Settle();
  ASSERT_EQ(Describe().epoch, 2);
  EXPECT_EQ(Edge("coordinator", "w1", EdgePhase::kBoth).since_plan.tokens, 0);
  ASSERT_TRUE(Submit(2, kPrompt, 1, kAnswer).ok());
  EndSteps();
  const EdgeStatus entry = Edge("coordinator", "w1", EdgePhase::kBoth);
  EXPECT_EQ(entry.since_plan.tokens, tokens);
  EXPECT_EQ(entry.since_start.tokens, 2 * tokens);
  EXPECT_EQ(Edge("w1", "w2", EdgePhase::kBoth).since_start.tokens, tokens);
  EXPECT_FALSE(Edge("w1", "coordinator", EdgePhase::kBoth).planned) << "of the plan before";
}

TEST_F(Described, AnAutomaticLayoutPlansNoFlow) {
  Start(Options());
  Join(1);
  const EdgeStatus edge = Edge("coordinator", "w1", EdgePhase::kBoth);
  EXPECT_TRUE(edge.planned);
  EXPECT_EQ(edge.planned_tokens_per_s, 0);
}

// Workers 1 and 2 compute prompts, two layers each. Worker 3 decodes.
class Apart : public Described {
 protected:
  Apart() {
    Start(Chains({{kFront, kPrefill}, {kBack, kPrefill}, {kAll, kDecode}}));
    for (uint64_t worker = 1; worker <= 3; ++worker) Join(worker);
    pull_bytes_ = 1000;
    pull_seconds_ = 0.5;
  }
};

TEST_F(Apart, HandOversCountByWorkers) {
  ASSERT_TRUE(Submit(1, kPrompt, 1, kAnswer).ok());
  EXPECT_EQ(Describe().stages[0].running, 1);
  EndStep(1);
  EXPECT_EQ(Describe().waiting_for.transfer, 1);
  EXPECT_EQ(Describe().stages[2].waiting, 1) << "for its KV";
  ASSERT_EQ(pulls_.size(), 1u);
  EndPull(0);
  EXPECT_EQ(Describe().waiting_for.transfer, 0);
  EXPECT_EQ(Describe().stages[2].running, 1);
  EXPECT_EQ(Describe().stages[2].kv_blocks_used, 3) << "of 4 tokens";
  EndSteps();
  EXPECT_EQ(Edge("coordinator", "w1", EdgePhase::kPrefill).since_start.tokens, kPrompt);
  EXPECT_EQ(Edge("w1", "w2", EdgePhase::kPrefill).since_start.tokens, kPrompt);
  EXPECT_EQ(Edge("coordinator", "w3", EdgePhase::kDecode).since_start.tokens, kAnswer - 1);
  for (const char* from : {"w1", "w2"}) {
    const EdgeStatus edge = Edge(from, "w3", EdgePhase::kHandOver);
    EXPECT_FALSE(edge.planned) << "the plan leaves it open";
    EXPECT_EQ(edge.since_start.tokens, kPrompt);
    EXPECT_EQ(edge.since_start.requests, 1);
    EXPECT_EQ(edge.since_start.bytes, 500) << "each holds half of the layers";
    EXPECT_EQ(edge.since_start.seconds, 0.5);
  }
  EXPECT_EQ(c_->counters().hand_overs, 1u);
  EXPECT_EQ(c_->counters().hand_overs_failed, 0u);
}

TEST(UseHandOvers, ALinkHasTheRateOfWhatWasHandedOver) {
  std::vector<LinkStatus> links = {
      {"a", "b", 1e-4, 9e9, {}}, {"b", "a", 1e-4, 9e9, {}}, {"a", "c", 1e-4, 9e9, {}}};
  EdgeFlows::Table flows;
  flows[{"a", "b", EdgePhase::kHandOver}] = {.requests = 3, .bytes = 6'000'000, .seconds = 0.003};
  flows[{"b", "a", EdgePhase::kDecode}] = {.requests = 3, .bytes = 6'000'000, .seconds = 0.003};
  flows[{"a", "c", EdgePhase::kHandOver}] = {.requests = 1, .bytes = 1'000, .seconds = 0.5};
  UseHandOvers(flows, links);
  EXPECT_EQ(links[0].bytes_per_s, 2e9);
  EXPECT_EQ(links[0].latency_s, 1e-4);
  EXPECT_EQ(links[1].bytes_per_s, 9e9) << "nothing was handed over that way";
  EXPECT_EQ(links[2].bytes_per_s, 9e9) << "too few bytes to tell";
}

TEST_F(Apart, AFailedHandOverCountsAsFailedAndCarriesNothing) {
  ASSERT_TRUE(Submit(1, kPrompt, 1, kAnswer).ok());
  EndStep(1);
  while (!pulls_.empty()) EndPull(0, Unavailable("cut"));
  EndSteps();
  EXPECT_EQ(Tokens(1), size_t{kAnswer});
  EXPECT_EQ(c_->counters().hand_overs, 1u);
  EXPECT_EQ(c_->counters().hand_overs_failed, 1u);
  for (const EdgeStatus& edge : Describe().edges) {
    if (edge.phase == EdgePhase::kHandOver) {
      EXPECT_EQ(edge.since_start.requests, 0);
    }
  }
}

TEST_F(Apart, WaitingRequestsAreToldApartByWhatTheyWaitFor) {
  Lose(3);
  ASSERT_TRUE(Submit(1, kPrompt, 1, kAnswer).ok());
  EndStep(1);
  EXPECT_EQ(Describe().waiting_for.decode, 1) << "its prompt is computed";
  Lose(1);
  ASSERT_TRUE(Submit(2, kPrompt, 1, kAnswer).ok());
  const WaitingStatus waiting = Describe().waiting_for;
  EXPECT_EQ(waiting.prefill, 1);
  EXPECT_EQ(waiting.decode + waiting.transfer, 1);
}

TEST_F(Apart, StagesSayWhatTheyHoldAndWhetherTheyAreUp) {
  std::vector<StageStatus> stages = Describe().stages;
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[1].workers, std::vector<std::string>{"w2"});
  EXPECT_EQ(stages[1].layers, kBack);
  EXPECT_EQ(stages[1].role, kPrefill);
  // 65536 bytes, 8 bytes for a token in a layer, 4 tokens in a block.
  EXPECT_EQ(stages[0].kv_blocks, 65536 / 8 / 2 / 4);
  EXPECT_EQ(stages[2].kv_blocks, 65536 / 8 / 4 / 4);
  Lose(2);
  stages = Describe().stages;
  EXPECT_TRUE(stages[0].up);
  EXPECT_FALSE(stages[1].up);
  EXPECT_EQ(stages[1].workers, std::vector<std::string>{""});
  EXPECT_EQ(stages[1].kv_blocks, 0);
}

}  // namespace
}  // namespace millrace::cluster
