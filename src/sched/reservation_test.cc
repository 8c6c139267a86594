// The baselines of vLLM section 6.1 by their numbers.
#include <gtest/gtest.h>

#include "sched/reservation_policy.h"
#include "sched/testing/harness.h"

namespace millrace::sched {
namespace {

TEST(Reservation, SlotsByPolicy) {
  const SlotNeed need{.prompt_tokens = 100,
                      .output_tokens_max = 500,
                      .known_output_tokens = 25,
                      .model_len_max = 2048};
  EXPECT_EQ(MakePagedPolicy()->SlotsFor(need), std::nullopt);
  EXPECT_EQ(MakeOrcaPolicy()->SlotsFor(need), 600);
  EXPECT_EQ(MakeOrcaMaxPolicy()->SlotsFor(need), 2048);
  // "if the true output length is 25, it reserves 32 positions for outputs".
  EXPECT_EQ(MakeOrcaPow2Policy()->SlotsFor(need), 132);
  EXPECT_EQ(MakeOrcaOraclePolicy()->SlotsFor(need), 125);
  const SlotNeed unknown{.prompt_tokens = 100,
                         .output_tokens_max = 500,
                         .known_output_tokens = {},
                         .model_len_max = 2048};
  EXPECT_EQ(MakeOrcaPow2Policy()->SlotsFor(unknown), 612);
  EXPECT_EQ(MakeOrcaOraclePolicy()->SlotsFor(unknown), 600);
}

SchedulerOptions Opt13b(KvPolicy policy, int block_size) {
  SchedulerOptions o;
  o.block_size = block_size;
  o.num_blocks = 15728 / block_size;  // vLLM table 1: OPT-13B on one A100-40GB
  o.max_num_seqs = 1024;
  o.max_num_batched_tokens = 1 << 20;
  o.max_model_len = 2048;
  o.kv_policy = policy;
  o.prefix_caching = false;
  return o;
}

// Section 6.2, figure 13: Orca (Max) batches 7.00 requests for both datasets, because 15,728 slots
// hold seven of 2,048; 8.85 % of the slots are external waste (figure 2: 8.9 %).
TEST(Reservation, OrcaMaxHoldsExactlySevenOf2048) {
  for (int block_size : {1, 16}) {
    Harness h({.scheduler = Opt13b(KvPolicy::kOrcaMax, block_size), .audit = false});
    SamplingParams params;
    params.max_tokens = 58;
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(h.Add(std::vector<TokenId>(19, 3), params).ok());
    const StepPlan* plan = h.Schedule();
    ASSERT_NE(plan, nullptr);
    EXPECT_EQ(plan->sequences.size(), 7u);
    const SchedulerStats stats = h.scheduler().Stats();
    EXPECT_EQ(stats.running, 7);
    EXPECT_EQ(stats.waiting, 23);
    const double external = 1.0 - static_cast<double>(stats.blocks_reserved) / stats.blocks_total;
    EXPECT_NEAR(external, 0.0885, 0.0005);
  }
}

TEST(Reservation, TighterPromisesHoldMoreRequests) {
  std::map<KvPolicy, int> running;
  for (KvPolicy policy : {KvPolicy::kOrcaMax, KvPolicy::kOrca, KvPolicy::kOrcaPow2,
                          KvPolicy::kOrcaOracle, KvPolicy::kPaged}) {
    Harness h({.scheduler = Opt13b(policy, 16), .audit = false});
    SamplingParams params;
    params.max_tokens = 1000;
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(h.Add(std::vector<TokenId>(161, 3), params, [](NewRequest& r) {
                     r.known_output_tokens = 338;
                   }).ok());
    }
    h.Schedule();
    running[policy] = h.scheduler().Stats().running;
  }
  EXPECT_EQ(running[KvPolicy::kOrcaMax], 983 / 128);
  EXPECT_EQ(running[KvPolicy::kOrca], 983 / 73);
  EXPECT_EQ(running[KvPolicy::kOrcaPow2], 983 / 43);
  EXPECT_EQ(running[KvPolicy::kOrcaOracle], 983 / 32);
  EXPECT_EQ(running[KvPolicy::kPaged], (983 - 9) / 11);
}

// Feature 4: reserving policies never preempt, under ten times the load, and everybody finishes.
TEST(Reservation, NeverPreempts) {
  for (KvPolicy policy :
       {KvPolicy::kOrca, KvPolicy::kOrcaMax, KvPolicy::kOrcaPow2, KvPolicy::kOrcaOracle}) {
    SchedulerOptions o = Opt13b(policy, 4);
    o.num_blocks = 40;
    o.max_model_len = 64;
    o.stages = 2;
    Harness h({.scheduler = o});
    for (int i = 0; i < 60; ++i) {
      SamplingParams params;
      params.max_tokens = 1 + i % 30;
      params.n = 1 + i % 2;
      ASSERT_TRUE(h.Add(std::vector<TokenId>(1 + i % 20, 3), params).ok());
    }
    h.RunToEnd();
    EXPECT_EQ(h.scheduler().Stats().preemptions_recompute, 0u);
    EXPECT_EQ(h.scheduler().Stats().requests_finished[static_cast<int>(FinishReason::kLength)],
              60u);
    EXPECT_EQ(h.scheduler().Stats().blocks_reserved, 0);
  }
}

// An oracle that was wrong costs preemptions, never an answer.
TEST(Reservation, OutgrowingThePromiseStillFinishes) {
  SchedulerOptions o = Opt13b(KvPolicy::kOrcaOracle, 4);
  o.num_blocks = 12;
  o.max_model_len = 48;
  Harness h({.scheduler = o});
  SamplingParams params;
  params.max_tokens = 30;
  std::vector<RequestId> ids;
  for (int i = 0; i < 5; ++i) {
    const auto id = h.Add(std::vector<TokenId>(6, 3 + i), params,
                          [](NewRequest& r) { r.known_output_tokens = 2; });
    ASSERT_TRUE(id.ok());
    ids.push_back(*id);
  }
  h.RunToEnd();
  EXPECT_GT(h.scheduler().Stats().preemptions_recompute, 0u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(h.outcome(ids[i]).tokens,
              h.model().Generate(std::vector<TokenId>(6, 3 + i), params, 0, 30));
  }
}

}  // namespace
}  // namespace millrace::sched
