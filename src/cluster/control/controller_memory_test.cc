// Pipelines that share too little memory: who must leave, and that the others then run.
#include <gtest/gtest.h>

#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

class LittleMemory : public ScriptedWorkers {
 protected:
  static constexpr int kPromptTokens = 60;  // 15 blocks, and one for the output
  LittleMemory() { kv_bytes_ = 20 * kBlockSize * kLayers * 8; }  // 20 blocks of all layers

  // Two first stages lead to the same last one.
  static Plan SharedBack() {
    Plan plan{.num_layers = kLayers};
    plan.stages = {{.layers = kFront}, {.layers = kFront}, {.layers = kBack}};
    plan.edges = {{std::nullopt, 0, 1}, {std::nullopt, 1, 1}, {0, 2, 1}, {1, 2, 1}, {2, {}, 1}};
    return plan;
  }
};

// The request cannot move with its KV, because both pipelines together have too little memory for
// it. It leaves the earlier pipeline and is computed again in the new one.
TEST_F(LittleMemory, ARequestOfAnEarlierPlanLeavesWithoutItsKv) {
  Start(Chains({{kAll, kBoth}}));
  Join(1);
  Join(2);
  ASSERT_TRUE(Submit(1, kPromptTokens).ok());
  EndStep(1);
  ASSERT_EQ(Tokens(1), 1u);
  ASSERT_TRUE(c_->ApplyPlan(Chains({{kFront, kBoth}, {kBack, kBoth}}), {"w1", "w2"}).ok());
  Settle();
  ASSERT_EQ(Describe().epoch, 2);
  EXPECT_TRUE(pulls_.empty());
  EXPECT_EQ(Describe().counters.replays, 1u);
  EndStep(1);  // of the earlier pipeline, which is closed: a late message
  EXPECT_EQ(Tokens(1), 1u);
  const ClusterStatus status = Describe();
  ASSERT_EQ(status.pipelines.size(), 1u);
  EXPECT_EQ(status.pipelines[0].blocks_total, 40) << "everything, for half of the layers";
  EXPECT_EQ(status.pipelines[0].requests, 1);
  ASSERT_EQ(steps_.size(), 1u);
  EXPECT_EQ(steps_[0].second.plan->tokens.size(), kPromptTokens + 1u);
  EndStep(1);
  EXPECT_EQ(Tokens(1), 2u);
}

// Recoverable KV is an optimization: it goes when a pipeline can do nothing without its memory.
TEST_F(LittleMemory, RecoverableKvGoesWhenAPipelineNeedsItsMemory) {
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
  for (uint64_t worker : {1, 2, 3}) Join(worker);
  for (uint64_t id : {1, 2}) ASSERT_TRUE(Submit(id, kPromptTokens).ok());
  while (Tokens(1) == 0 || Tokens(2) == 0) EndStep(1);
  steps_.clear();
  Lose(2);
  EXPECT_EQ(Describe().counters.pipelines_lost, 1u);
  ASSERT_EQ(Describe().pipelines.size(), 1u);
  EXPECT_EQ(Describe().pipelines[0].blocks_total, 40);
  EXPECT_TRUE(pulls_.empty());
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1}));
  EndStep(1);
  EXPECT_EQ(Tokens(1) + Tokens(2), 3u);
  EXPECT_EQ(Describe().counters.fetched, 0u);
}

// With enough memory for both, it is fetched.
TEST_F(LittleMemory, RecoverableKvIsFetchedWhileBothFit) {
  Start(Chains({{kFront, kBoth}, {kBack, kBoth}}));
  for (uint64_t worker : {1, 2, 3}) Join(worker);
  ASSERT_TRUE(Submit(1, kPromptTokens).ok());
  while (Tokens(1) == 0) EndStep(1);
  steps_.clear();
  Lose(2);
  ASSERT_EQ(Describe().pipelines.size(), 1u);
  EXPECT_EQ(Describe().pipelines[0].blocks_total, 40 - 16);
  ASSERT_EQ(pulls_.size(), 1u);
  EndPull(0);
  EXPECT_EQ(Describe().counters.fetched, 1u);
  Pass(0.25);
  EXPECT_EQ(Describe().pipelines[0].blocks_total, 40);
}

// Both plans fit: the request moves with its KV, and the new pipeline has everything when the
// earlier one has closed.
TEST_F(LittleMemory, ARequestMovesWithItsKvWhileBothPlansFit) {
  Start(Chains({{kAll, kBoth}}));
  Join(1);
  Join(2);
  ASSERT_TRUE(Submit(1, /*prompt_tokens=*/20).ok());
  EndStep(1);
  ASSERT_EQ(Describe().pipelines.size(), 1u);
  EXPECT_EQ(Describe().pipelines[0].blocks_total, 20);
  ASSERT_TRUE(c_->ApplyPlan(Chains({{kFront, kBoth}, {kBack, kBoth}}), {"w1", "w2"}).ok());
  Settle();
  ASSERT_EQ(Describe().pipelines.size(), 2u);
  const int earlier = Describe().pipelines[0].blocks_total;
  EXPECT_GE(earlier, 6) << "what the request uses";
  EXPECT_LE(2 * earlier + Describe().pipelines[1].blocks_total, 40) << "of half of the layers";
  while (Describe().pipelines.size() > 1) {
    if (pulls_.empty()) {
      ASSERT_FALSE(steps_.empty());
      EndStep(1);
    } else {
      EndPull(0);
    }
  }
  EXPECT_EQ(Describe().counters.moves, 1u);
  EXPECT_EQ(Describe().counters.moves_failed + Describe().counters.replays, 0u);
  EXPECT_EQ(Describe().pipelines[0].blocks_total, 40);
}

// KV is held for a worker that pulls it and is lost. The plan changes meanwhile. When the lease has
// ended, the new pipeline has all memory.
TEST_F(LittleMemory, TheLeaseOfALostPullerEnds) {
  Start(Chains({{kAll, kPrefill}, {kAll, kDecode}}));
  Join(1);
  Join(2);
  ASSERT_TRUE(Submit(1, kPromptTokens).ok());
  EndStep(1);
  ASSERT_EQ(pulls_.size(), 1u);
  Lose(2);
  pulls_.clear();
  ASSERT_TRUE(c_->ApplyPlan(Chains({{kAll, kBoth}}), {"w1"}).ok());
  Settle();
  Pass(1);
  EXPECT_TRUE(pulls_.empty()) << "there is no room for a copy";
  ASSERT_EQ(Describe().pipelines.size(), 1u) << "the KV gave way";
  EXPECT_EQ(Describe().pipelines[0].blocks_total, 20);
  EXPECT_EQ(Busy(), (std::set<uint64_t>{1}));
  EndStep(1);
  EXPECT_EQ(Tokens(1), 2u);
}

// The next controller knows nothing of the pipelines before it, which its workers have closed
// (WorkerCore.TheNextControllerFindsTheMemoryFree). Its accounts begin with what the workers
// report.
TEST_F(LittleMemory, TheNextControllerBeginsWithEmptyAccounts) {
  Start(Chains({{kAll, kBoth}}));
  Join(1);
  ASSERT_TRUE(Submit(1, kPromptTokens).ok());
  EndStep(1);
  EXPECT_GE(Describe().pipelines[0].blocks_used, 15);
  const PipelineId before = steps_.at(0).second.pipeline;
  steps_.clear();
  ControllerOptions options = Options();
  options.plan = Chains({{kAll, kBoth}});
  options.term = Term(2);
  Start(std::move(options));
  Join(1);
  ASSERT_EQ(Describe().pipelines.size(), 1u);
  EXPECT_EQ(Describe().pipelines[0].blocks_total, 20);
  EXPECT_EQ(Describe().pipelines[0].blocks_used, 0);
  ASSERT_TRUE(Submit(1, kPromptTokens).ok());
  ASSERT_EQ(steps_.size(), 1u);
  EXPECT_NE(steps_[0].second.pipeline, before);
  EXPECT_EQ(steps_[0].second.returns, 0u);
}

// Small requests come all the time. They do not take the blocks that a large one waits for.
TEST_F(LittleMemory, ALargeRequestIsNotOvertakenWhileItWaitsForBlocks) {
  kv_bytes_ = 65536;
  ControllerOptions options = Options();
  options.plan = SharedBack();
  options.scheduler.num_blocks = 16;
  Start(std::move(options));
  for (uint64_t worker : {1, 2, 3}) Join(worker);
  Lose(2);  // one of the two front halves
  const auto submit_small = [&](uint64_t id) { return Submit(id, 8, 1, 5); };  // 3 blocks
  ASSERT_TRUE(submit_small(1).ok());
  ASSERT_TRUE(Submit(2, kPromptTokens).ok());  // 16 blocks
  uint64_t id = 2;
  for (int step = 0; step < 20 && Tokens(2) == 0; ++step) {
    ASSERT_TRUE(submit_small(++id).ok());
    EndStep(1);
  }
  EXPECT_EQ(Tokens(1), 5u);
  EXPECT_EQ(Tokens(2), 1u);
  EXPECT_EQ(Tokens(3), 0u) << "it waits behind the large one";
  while (!steps_.empty()) EndStep(1);
  while (id > 2) EXPECT_EQ(Tokens(id--), 5u);
}

// The two requests reserve what answers usually take, and the younger one starts although both
// limits together do not fit. Then both grow. The younger one gives way, and is computed again
// (docs/decisions/0005).
TEST_F(LittleMemory, AYoungerRequestGivesWayToAnOlderOneThatGrows) {
  kv_bytes_ = 22 * kBlockSize * 2 * 8;  // 22 blocks of two layers
  ControllerOptions options = Options();
  options.scheduler.max_model_len = 72;  // a request of this length takes 18 blocks
  options.plan = SharedBack();
  Start(std::move(options));
  for (uint64_t worker : {1, 2, 3}) Join(worker);
  const auto run = [&] {
    for (int steps = 0; !steps_.empty(); ++steps) {
      ASSERT_LT(steps, 500);
      EndStep(steps_.front().first);
      for (const PipelineStatus& pipeline : Describe().pipelines) {
        ASSERT_LE(pipeline.blocks_used, 22);
      }
    }
  };
  for (uint64_t id = 1; id <= OutputEstimate::kAnswersNeeded; ++id) {
    ASSERT_TRUE(Submit(id, 8, 1, 4).ok());
    run();
  }
  const uint64_t older = 100, younger = 101;
  ASSERT_TRUE(Submit(older, 8).ok());
  Pass(0.1);
  ASSERT_TRUE(Submit(younger, 8).ok());
  EXPECT_EQ(Describe().waiting, 0) << "each reserves three blocks";
  ASSERT_EQ(Describe().pipelines.size(), 2u);
  EXPECT_EQ(Describe().pipelines[0].requests, 1);
  run();
  EXPECT_EQ(Tokens(older), 64u);
  EXPECT_EQ(Tokens(younger), 64u);
  EXPECT_EQ(Describe().counters.evictions, 1u);
}

// Requests on many routes through the same two workers. They hold what one route would hold, the
// others wait, and all get their answers.
TEST_F(LittleMemory, ManyRoutesHoldWhatOneHolds) {
  Plan plan{.num_layers = kLayers};
  for (int i = 0; i < 4; ++i) {
    plan.stages.push_back({.layers = i < 2 ? kFront : kBack, .role = kBoth});
    plan.edges.push_back({i < 2 ? std::nullopt : std::optional(0), i, 1});
    if (i >= 2) plan.edges.push_back({1, i, 1});
    if (i >= 2) plan.edges.push_back({i, std::nullopt, 1});
  }
  Start(std::move(plan));
  for (uint64_t worker : {1, 2, 3, 4}) Join(worker);
  constexpr uint64_t kRequests = 12;
  for (uint64_t id = 1; id <= kRequests; ++id) ASSERT_TRUE(Submit(id, 40).ok());
  ASSERT_EQ(Describe().pipelines.size(), 4u);
  int steps = 0, most = 0;
  while (!steps_.empty()) {
    ASSERT_LT(++steps, 2000);
    EndStep(steps_.front().first);
    int held = 0;
    for (const auto& pipeline : Describe().pipelines) held += pipeline.blocks_total;
    most = std::max(most, held);
  }
  EXPECT_LE(most, 80) << "both entry workers together have memory for 80 blocks of two layers";
  EXPECT_GT(most, 60) << "and most of it is used";
  for (uint64_t id = 1; id <= kRequests; ++id) EXPECT_EQ(Tokens(id), 24u) << "request " << id;
  EXPECT_EQ(c_->Stats().preemptions_recompute, 0u);
}

}  // namespace
}  // namespace millrace::cluster
