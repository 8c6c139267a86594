// The baselines of vLLM section 6.1 with their published numbers.
#include <gtest/gtest.h>

#include <array>

#include "base/rng.h"
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
    EXPECT_EQ(stats.tokens_promised, 7 * 2048);
    EXPECT_EQ(stats.tokens_computed, 0);
    EXPECT_EQ(stats.tokens_to_come, 7 * 58);
    h.Commit();
    EXPECT_EQ(h.scheduler().Stats().tokens_computed, 7 * 19);
    EXPECT_EQ(h.scheduler().Stats().tokens_to_come, 7 * 57);
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
  // 161 + 512 slots are 43 blocks, in a run of 64.
  EXPECT_EQ(running[KvPolicy::kOrcaPow2], 983 / 64);
  EXPECT_EQ(running[KvPolicy::kOrcaOracle], 983 / 32);
  EXPECT_EQ(running[KvPolicy::kPaged], (983 - 9) / 11);
}

// Feature 4: reserving policies never preempt, under ten times the load, and every request
// finishes.
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

// Two sequences whose prompt ends inside a block copy it when they fork. They use no more than was
// promised, although the block is in two tables until then.
TEST(Reservation, ForkedSequencesStayWithinThePromise) {
  for (KvPolicy policy :
       {KvPolicy::kOrca, KvPolicy::kOrcaMax, KvPolicy::kOrcaPow2, KvPolicy::kOrcaOracle}) {
    SchedulerOptions o = Opt13b(policy, 4);
    o.num_blocks = 8;
    o.max_model_len = 8;
    Harness h({.scheduler = o});
    SamplingParams params;
    params.max_tokens = 2;
    params.n = 2;
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(h.Add(std::vector<TokenId>(5, 3 + i), params).ok());
    h.Schedule();
    EXPECT_EQ(h.scheduler().Stats().blocks_reserved, 8);
    h.RunToEnd();
    EXPECT_EQ(h.scheduler().Stats().preemptions_recompute, 0u);
  }
}

// Unreserved blocks may be fragmented: the request waits for a run and reports that.
TEST(Reservation, WaitsForAdjacentBlocks) {
  SchedulerOptions o = Opt13b(KvPolicy::kOrcaOracle, 1);
  o.num_blocks = 12;  // 8 + 4
  o.max_model_len = 12;
  Harness h({.scheduler = o});
  const auto add = [&](int prompt, int output, int n) {
    SamplingParams params;
    params.max_tokens = output;
    params.n = n;
    return h.Add(std::vector<TokenId>(prompt, 3), params);
  };
  const auto two = add(1, 1, 1);
  const auto five = add(2, 3, 1);
  const auto again = add(2, 3, 2);
  ASSERT_TRUE(two.ok() && five.ok());
  EXPECT_EQ(again.status().message(),
            "2 sequences of 2 prompt tokens and up to 3 generated tokens need 16 KV blocks of 1 "
            "tokens in runs of a power of two, and there are 12; lower max_tokens or n, or start "
            "with more KV blocks");
  const auto last = add(1, 2, 2);
  ASSERT_TRUE(last.ok());
  h.Schedule();
  EXPECT_EQ(h.scheduler().Inspect(*last, h.now())->waits_for,
            "KV blocks: it reserves 2 runs of 4 adjacent ones and 0 such are free (2 of 12 blocks "
            "are not reserved)");
  EXPECT_EQ(h.scheduler().Stats().blocks_reserved, 10);
  h.RunToEnd();
  EXPECT_TRUE(h.finished(*last));
}

// A sequence cannot be longer than the largest run; without a limit, that is its limit.
TEST(Reservation, TheGreatestRunBoundsASequence) {
  SchedulerOptions o = Opt13b(KvPolicy::kOrcaMax, 1);
  o.num_blocks = 12;
  o.max_model_len = 12;
  Harness h({.scheduler = o});
  const auto open = h.Add(std::vector<TokenId>(3, 3), {});
  ASSERT_TRUE(open.ok());
  EXPECT_FALSE(h.Add(std::vector<TokenId>(8, 3), {}).ok());
  EXPECT_TRUE(h.Add(std::vector<TokenId>(7, 3), {}).ok());
  h.RunToEnd();
  EXPECT_EQ(h.outcome(*open).tokens.size(), 5u);
}

// Random loads with the audit after every change. If lengths are predicted correctly or not at all,
// no request is preempted; if predicted wrongly, every request still gets its own answer.
TEST(Reservation, RandomLoadsNeverPreemptUnlessOutgrown) {
  uint64_t outgrown = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const std::array policies = {KvPolicy::kOrca, KvPolicy::kOrcaMax, KvPolicy::kOrcaPow2,
                                 KvPolicy::kOrcaOracle};
    SchedulerOptions o = Opt13b(policies[seed % policies.size()], 1 << rng.Between(0, 2));
    o.num_blocks = static_cast<int>(rng.Between(128, 300)) / o.block_size;
    o.num_host_blocks = rng.Between(0, 1) ? o.num_blocks : 0;
    o.max_model_len = 32;
    o.max_num_seqs = static_cast<int>(rng.Between(1, 12));
    o.max_num_batched_tokens = static_cast<int>(rng.Between(4, 64));
    o.stages = static_cast<int>(rng.Between(1, 3));
    o.prefix_caching = rng.Between(0, 1);
    o.step_mix = rng.Between(0, 2) ? StepMix::kMixed : StepMix::kPrefillFirst;
    const bool wrong = rng.Between(0, 1);
    Harness h({.scheduler = o});
    std::map<RequestId, std::pair<std::vector<TokenId>, SamplingParams>> asked;
    for (int i = 0; i < 20; ++i) {
      SamplingParams params;
      params.max_tokens = static_cast<int>(rng.Between(1, 16));
      params.n = static_cast<int>(rng.Between(1, 3));
      const std::vector<TokenId> prompt(rng.Between(1, 16), static_cast<TokenId>(3 + i % 5));
      const bool known = rng.Between(0, 1);
      const auto id = h.Add(prompt, params, [&](NewRequest& r) {
        if (known) r.known_output_tokens = wrong ? 1 : *params.max_tokens;
      });
      ASSERT_TRUE(id.ok()) << id.status().ToString();
      asked[*id] = {prompt, params};
      for (int64_t turns = rng.Between(0, 3); turns > 0; --turns) h.Turn();
    }
    h.RunToEnd();
    for (const auto& [id, test_request] : asked) {
      const auto& [prompt, params] = test_request;
      for (int k = 0; k < params.n; ++k) {
        ASSERT_EQ(h.outcome(id, k).tokens,
                  h.model().Generate(prompt, params, SequenceSeed(0, k), *params.max_tokens));
      }
    }
    const SchedulerStats stats = h.scheduler().Stats();
    const uint64_t preemptions = stats.preemptions_recompute + stats.preemptions_swap;
    if (!wrong) {
      ASSERT_EQ(preemptions, 0u);
    }
    outgrown += preemptions;
    EXPECT_EQ(stats.blocks_reserved, 0);
    EXPECT_EQ(stats.blocks_free, o.num_blocks);
  }
  EXPECT_GT(outgrown, 20u);
}

// A wrong oracle costs preemptions, but never changes an answer.
TEST(Reservation, OutgrowingThePromiseStillFinishes) {
  SchedulerOptions o = Opt13b(KvPolicy::kOrcaOracle, 4);
  o.num_blocks = 16;
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
