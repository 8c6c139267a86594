// Promise 1: the answer depends on the test request only. Whatever the pool, the chunking, the
// preemption, the prefix cache, the other requests or the stages, every sequence gets the same
// tokens as alone, each once and in order.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "base/testing/test_scale.h"
#include "sched/testing/harness.h"
#include "sched/testing/test_requests.h"

namespace millrace::sched {
namespace {

constexpr int kVocab = kTestRequestVocab;
constexpr TokenId kOutputsEos = kTestRequestEos;

struct Totals {
  uint64_t recomputes = 0, swaps = 0, hits = 0, copies = 0, returned = 0, vectors = 0, beams = 0;
};

// Takes turns while the number of blocks that may be held changes at random, and the blocks that
// were taken away lose their content.
void RunUnderLimits(Harness& h, int num_blocks, Rng& rng, Totals& totals) {
  for (int turn = 0; turn < 60; ++turn) {
    const int limit = static_cast<int>(rng.Between(0, num_blocks));
    const int got = h.scheduler().LimitBlocks(limit);
    ASSERT_LE(h.scheduler().blocks_in_use(), got);
    const std::vector<BlockIndex> returned = h.scheduler().TakeReturned();
    h.model().Drop(returned);
    totals.returned += returned.size();
    h.Turn();
  }
  ASSERT_EQ(h.scheduler().LimitBlocks(num_blocks), num_blocks);
}

void CheckRun(const std::vector<TestRequest>& test_requests, const SchedulerOptions& options,
              Rng& rng, Totals& totals) {
  Harness h({.scheduler = options, .vocab_size = kVocab});
  std::vector<RequestId> ids;
  for (const TestRequest& q : test_requests) {
    const auto id = h.Add(q.prompt, q.params, [&](NewRequest& r) {
      r.seed = q.seed;
      r.priority = static_cast<int>(q.seed % 3);
      r.client = std::to_string(q.seed % 4);
    });
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    ids.push_back(*id);
    for (int64_t turns = rng.Between(0, 3); turns > 0; --turns) h.Turn();
  }
  if (rng.Between(0, 1)) RunUnderLimits(h, options.num_blocks, rng, totals);
  h.RunToEnd();
  for (size_t i = 0; i < test_requests.size(); ++i) {
    for (int k = 0; k < test_requests[i].params.n; ++k) {
      const SequenceOutcome& outcome = h.outcome(ids[i], k);
      ASSERT_EQ(outcome.tokens, Expected(test_requests[i], k))
          << "request " << i << " sequence " << k;
      ASSERT_EQ(outcome.pooled, ExpectedVector(test_requests[i])) << "request " << i;
      totals.vectors += !outcome.pooled.empty();
      totals.beams += test_requests[i].params.beam_search;
      EXPECT_EQ(outcome.logprobs.size(),
                test_requests[i].params.logprobs ? outcome.tokens.size() : 0);
      EXPECT_EQ(outcome.prompt_logprobs.size(),
                test_requests[i].params.prompt_logprobs ? test_requests[i].prompt.size() - 1 : 0);
    }
  }
  const SchedulerStats stats = h.scheduler().Stats();
  EXPECT_EQ(stats.blocks_free, options.num_blocks);
  EXPECT_EQ(stats.host_blocks_used, 0);
  totals.recomputes += stats.preemptions_recompute;
  totals.swaps += stats.preemptions_swap;
  totals.hits += stats.prefix_hit_tokens;
  totals.copies += stats.copied_blocks;
}

// The most blocks that one of the test requests can hold: with a pool of this size all others are
// sometimes preempted.
int TightestPool(const std::vector<TestRequest>& test_requests, int block_size) {
  int most = 0;
  for (const TestRequest& q : test_requests) {
    const int prompt = static_cast<int>(q.prompt.size());
    const int each = (prompt + *q.params.max_tokens - 1 + block_size - 1) / block_size;
    const int shared = q.params.n > 1 ? (prompt - 1) / block_size : 0;
    most = std::max(most, shared + q.params.n * (each - shared));
  }
  return most;
}

TEST(Outputs, EqualAloneForEveryScheduleSeed) {
  Totals totals;
  const uint64_t cases = 400 * TestScale();
  for (uint64_t seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const auto test_requests = RandomRequests(rng, static_cast<int>(rng.Between(1, 12)), 24, 16, 4);
    SchedulerOptions o;
    o.block_size = static_cast<int>(rng.Between(1, 8));
    o.max_model_len = 40;
    o.num_blocks = TightestPool(test_requests, o.block_size) + static_cast<int>(rng.Between(0, 9));
    o.num_host_blocks = static_cast<int>(rng.Between(0, 1) * rng.Between(1, 2 * o.num_blocks));
    o.max_num_seqs = static_cast<int>(rng.Between(1, 10));
    o.max_num_batched_tokens = static_cast<int>(rng.Between(1, 64));
    o.stages = static_cast<int>(rng.Between(1, 4));
    o.prefix_caching = rng.Between(0, 1);
    o.hashes_collide = rng.Between(0, 9) == 0;
    o.watermark = rng.Between(0, 1) ? 0.0 : 0.1;
    o.preemption = !o.num_host_blocks  ? PreemptionMode::kRecompute
                   : rng.Between(0, 1) ? PreemptionMode::kSwap
                                       : PreemptionMode::kAuto;
    o.eos_token_ids = {kOutputsEos};
    o.policy = static_cast<SchedulingPolicy>(rng.Between(0, 2));
    o.step_mix = rng.Between(0, 2) ? StepMix::kMixed : StepMix::kPrefillFirst;
    CheckRun(test_requests, o, rng, totals);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(totals.recomputes, 100u);
  EXPECT_GT(totals.swaps, 100u);
  EXPECT_GT(totals.hits, 1000u);
  EXPECT_GT(totals.copies, 100u);
  EXPECT_GT(totals.returned, 1000u);
  EXPECT_GT(totals.vectors, 50u);
  EXPECT_GT(totals.beams, 500u);
}

}  // namespace
}  // namespace millrace::sched
