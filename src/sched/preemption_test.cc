// Which request is preempted, how, and what that must not cause: thrashing, livelock, starvation
// (vLLM section 4.5).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "sched/testing/harness.h"
#include "sched/testing/small.h"

namespace millrace::sched {
namespace {

// vLLM section 4.5: the latest request is preempted first, with all its sequences or none.
TEST(Preemption, LatestFirstAllOrNothing) {
  SchedulerOptions o = Small();
  o.num_blocks = 12;
  Harness h({.scheduler = o});
  const RequestId first = h.MustAdd(Prompt(8), MaxTokens(24));
  const RequestId second = h.MustAdd(Prompt(8, 50), MaxTokens(24));
  const RequestId pair = h.MustAdd(Prompt(6, 90), MaxTokens(8, 2));
  std::vector<PreemptionRecord> records;
  while (records.empty()) {
    ASSERT_TRUE(h.Turn());
    records = h.TakePreemptions();
  }
  EXPECT_EQ(records[0].victim, pair);
  EXPECT_EQ(records[0].chosen, PreemptionMode::kRecompute);
  EXPECT_GT(records[0].blocks_needed, records[0].blocks_available);
  EXPECT_EQ(h.scheduler().Inspect(pair, h.now())->blocks, 0);
  EXPECT_EQ(h.scheduler().Inspect(pair, h.now())->preemptions, 1);
  EXPECT_GT(h.scheduler().Inspect(first, h.now())->blocks, 0);
  EXPECT_GT(h.scheduler().Inspect(second, h.now())->blocks, 0);
  h.RunToEnd();
  for (const PreemptionRecord& r : h.TakePreemptions())
    EXPECT_NE(r.victim, first) << "the oldest never yields";
}

// Feature 13: both costs are recorded and the cheaper mode is chosen; either can be forced.
TEST(Preemption, ModeByPredictedCost) {
  struct Case {
    PreemptionMode mode;
    double prefill_rate;
    int host_blocks;
    PreemptionMode chosen;
  };
  for (const Case& c : {Case{PreemptionMode::kAuto, 1e9, 16, PreemptionMode::kRecompute},
                        Case{PreemptionMode::kAuto, 1, 16, PreemptionMode::kSwap},
                        Case{PreemptionMode::kAuto, 1, 1, PreemptionMode::kRecompute},
                        Case{PreemptionMode::kSwap, 1e9, 16, PreemptionMode::kSwap},
                        Case{PreemptionMode::kRecompute, 1, 16, PreemptionMode::kRecompute}}) {
    SchedulerOptions o = Small();
    o.num_blocks = 8;
    o.preemption = c.mode;
    o.num_host_blocks = c.host_blocks;
    o.costs = {.prefill_tokens_per_s = c.prefill_rate,
               .swap_bytes_per_s = 1e6,
               .swap_block_overhead_s = 1e-3,
               .kv_bytes_per_block = 1000};
    Harness h({.scheduler = o});
    h.MustAdd(Prompt(8), MaxTokens(20));
    h.MustAdd(Prompt(8, 50), MaxTokens(20));
    std::vector<PreemptionRecord> records;
    while (records.empty()) {
      ASSERT_TRUE(h.Turn());
      records = h.TakePreemptions();
    }
    EXPECT_EQ(records[0].chosen, c.chosen);
    EXPECT_DOUBLE_EQ(records[0].recompute_cost_s, records[0].tokens_dropped / c.prefill_rate);
    if (c.host_blocks == 1) {
      EXPECT_TRUE(std::isinf(records[0].swap_cost_s));
    } else {
      EXPECT_DOUBLE_EQ(records[0].swap_cost_s, 2 * records[0].blocks_released * (1e-3 + 1e-3));
    }
    h.RunToEnd();
  }
}

// Traps 21 and 22: a victim's step in flight still returns; its token counts once, its blocks are
// pending until then, and no other request is preempted for them (trap 3).
TEST(Preemption, AStepInFlightOfTheVictim) {
  SchedulerOptions o = Small();
  o.num_blocks = 4;
  o.max_num_seqs = 1;
  o.stages = 2;
  Harness h({.scheduler = o});
  const RequestId a = h.MustAdd(Prompt(4), MaxTokens(12));
  const RequestId b = h.MustAdd(Prompt(4, 50), MaxTokens(9));
  bool seen = false;
  while (!h.finished(a) || !h.finished(b)) {
    const bool planned = h.Schedule() != nullptr;
    if (h.scheduler().Stats().blocks_pending > 0) {
      seen = true;
      EXPECT_EQ(h.scheduler().Inspect(b, h.now())->waits_for,
                "the step after the one that preempted it");
    }
    if (!planned) h.Commit();
  }
  EXPECT_TRUE(seen);
  EXPECT_EQ(h.outcome(a).tokens, h.model().Generate(Prompt(4), MaxTokens(12), 0, 12));
  EXPECT_EQ(h.outcome(b).tokens, h.model().Generate(Prompt(4, 50), MaxTokens(9), 0, 9));
}

// Reliability 52: all running requests need one more block at once. There is one victim at a time,
// and few steps have no tokens.
TEST(Preemption, GrowthOfAllAtOnce) {
  SchedulerOptions o = Small();
  o.num_blocks = 8;
  Harness h({.scheduler = o});
  for (int i = 0; i < 4; ++i) h.MustAdd(Prompt(7, 20 * i), MaxTokens(10));
  int most = 0;
  std::vector<PreemptionRecord> records;
  while (h.scheduler().HasWork()) {
    const StepPlan* plan = h.Schedule();
    ASSERT_NE(plan, nullptr) << "no step without a token";
    most = std::max(most, static_cast<int>(h.TakePreemptions().size()));
    h.Commit();
  }
  EXPECT_GT(h.scheduler().Stats().preemptions_recompute, 0u);
  EXPECT_LE(most, 2) << "four blocks were needed; each victim gives two";
}

// Reliability 50 and 53: three times what the pool holds, and a stream of short requests behind two
// long ones. Every request finishes and none is preempted indefinitely.
TEST(Preemption, NoLivelock) {
  for (int host_blocks : {0, 12}) {
    SchedulerOptions o = Small();
    o.num_host_blocks = host_blocks;
    o.preemption = host_blocks ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
    Harness h({.scheduler = o});
    std::vector<RequestId> ids = {h.MustAdd(Prompt(20), MaxTokens(40)),
                                  h.MustAdd(Prompt(20, 70), MaxTokens(40))};
    for (int i = 0; i < 40; ++i) ids.push_back(h.MustAdd(Prompt(5, 3 * i), MaxTokens(6)));
    int most = 0;
    for (int turn = 0; h.Turn(); ++turn) {
      ASSERT_LT(turn, 2000);
      for (const RequestInfo& info : h.scheduler().InspectAll(h.now())) {
        most = std::max(most, info.preemptions);
      }
    }
    for (RequestId id : ids) EXPECT_TRUE(h.finished(id));
    EXPECT_LE(most, 4);
  }
}

// Reliability 55: a prompt is cut into chunks that leave every decode its token.
TEST(Chunking, DecodesKeepTheirTokenDuringALongPrefill) {
  SchedulerOptions o = Small();
  o.num_blocks = 64;
  o.max_model_len = 200;
  o.max_num_batched_tokens = 16;
  Harness h({.scheduler = o});
  std::vector<RequestId> decodes;
  for (int i = 0; i < 5; ++i) decodes.push_back(h.MustAdd(Prompt(2, i), MaxTokens(30)));
  h.Turn();
  h.MustAdd(Prompt(150), MaxTokens(2));
  for (int step = 0; step < 12; ++step) {
    const StepPlan* plan = h.Schedule();
    EXPECT_EQ(plan->sequences.size(), 6u);
    EXPECT_EQ(plan->tokens.size(), 16u);
    h.Commit();
  }
}

// Nor does a resumed request with much to replay stop those behind it.
TEST(Chunking, AnEarlierPrefillLeavesLaterDecodesTheirToken) {
  SchedulerOptions o = Small();
  o.num_blocks = 64;
  o.max_model_len = 200;
  o.max_num_batched_tokens = 16;
  o.policy = SchedulingPolicy::kPriority;
  Harness h({.scheduler = o});
  for (int i = 0; i < 5; ++i) {
    h.MustAdd(Prompt(2, i), MaxTokens(30), [](NewRequest& r) { r.priority = 9; });
  }
  h.Turn();
  h.MustAdd(Prompt(150), MaxTokens(2));
  h.Turn();
  for (int step = 0; step < 12; ++step) {
    const StepPlan* plan = h.Schedule();
    EXPECT_EQ(plan->sequences.size(), 6u);
    EXPECT_EQ(plan->sequences[0].num_tokens, 11);
    h.Commit();
  }
}

// Reliability 54: with a steady stream of short requests, a long one starts after those before it.
TEST(Chunking, LongPromptsDoNotStarve) {
  SchedulerOptions o = Small();
  o.max_num_batched_tokens = 8;
  Harness h({.scheduler = o});
  for (int i = 0; i < 8; ++i) h.MustAdd(Prompt(4, i), MaxTokens(4));
  const RequestId big = h.MustAdd(Prompt(50), MaxTokens(4));
  int turns = 0;
  while (!h.finished(big)) {
    h.MustAdd(Prompt(4, turns), MaxTokens(4));
    h.Turn();
    ASSERT_LT(++turns, 60);
  }
}

}  // namespace
}  // namespace millrace::sched
