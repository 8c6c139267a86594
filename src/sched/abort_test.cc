// Aborts at every moment, of a whole request or of one of its n sequences; nothing leaks.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "base/testing/test_scale.h"
#include "sched/testing/harness.h"
#include "sched/testing/small.h"

namespace millrace::sched {
namespace {

constexpr TokenId kAbortEos = 0;

// Traps 36 and 59: aborts at every moment, with any number of steps in flight, of a whole request
// or one of n. Blocks are returned, one end is delivered, other requests are not disturbed.
TEST(Abort, AtEveryMoment) {
  for (int stages : {1, 2, 3}) {
    for (int n : {1, 3}) {
      for (int moment = 0; moment < 40; ++moment) {
        for (int which = -1; which < n; ++which) {
          SCOPED_TRACE(testing::Message() << "stages " << stages << " n " << n << " moment "
                                          << moment << " index " << which);
          SchedulerOptions o = Small();
          o.stages = stages;
          o.num_blocks = 14;
          o.max_num_batched_tokens = 5;
          o.num_host_blocks = moment % 2 ? 14 : 0;
          o.preemption = moment % 2 ? PreemptionMode::kSwap : PreemptionMode::kRecompute;
          Harness h({.scheduler = o});
          h.MustAdd(Prompt(9), MaxTokens(12));
          const RequestId id = h.MustAdd(Prompt(9, 60), MaxTokens(9, n));
          const RequestId last = h.MustAdd(Prompt(6, 90), MaxTokens(6));
          // A moment is a call of Schedule or Commit.
          for (int call = 0; call < moment; ++call) {
            if (!h.Schedule() && h.in_flight() > 0) h.Commit();
          }
          const bool all = which < 0;
          if (all) {
            h.Abort(id);
            h.Abort(id);
          } else {
            h.Abort(id, which);
          }
          h.Abort(RequestId(1000));
          h.RunToEnd();
          for (int k = 0; k < n; ++k) {
            const auto expected =
                h.model().Generate(Prompt(9, 60), MaxTokens(9), SequenceSeed(0, k), 9);
            const SequenceOutcome& outcome = h.outcome(id, k);
            ASSERT_TRUE(outcome.finish.has_value());
            ASSERT_LE(outcome.tokens.size(), expected.size());
            EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), expected.begin()));
            if (!all && k != which) {
              EXPECT_EQ(outcome.tokens, expected);
            }
          }
          EXPECT_EQ(h.outcome(last).tokens, h.model().Generate(Prompt(6, 90), MaxTokens(6), 0, 6));
          EXPECT_EQ(h.scheduler().Stats().blocks_free, 14);
          EXPECT_EQ(h.scheduler().Stats().host_blocks_used, 0);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Done means 4, feature 9, reliability 56: 10,000 random finishes and aborts lose nothing.
TEST(Abort, TenThousandRandomEndsLeakNothing) {
  Rng rng(11);
  SchedulerOptions o = Small();
  o.num_blocks = 40;
  o.num_host_blocks = 20;
  o.preemption = PreemptionMode::kAuto;
  o.prefix_caching = true;
  o.stages = 2;
  o.max_waiting = 64;
  o.eos_token_ids = {kAbortEos};
  Harness h({.scheduler = o, .vocab_size = 30, .audit = false});
  std::vector<RequestId> ids;
  const size_t ends = 10'000 * static_cast<size_t>(TestScale());
  while (ids.size() < ends) {
    SamplingParams params = MaxTokens(static_cast<int>(rng.Between(1, 20)));
    params.n = static_cast<int>(rng.Between(1, 3));
    const auto id =
        h.Add(Prompt(static_cast<int>(rng.Between(1, 30)), static_cast<TokenId>(rng.Between(0, 3))),
              params);
    if (id.ok()) ids.push_back(*id);
    if (!id.ok() || rng.Between(0, 1)) h.Turn();
    if (rng.Between(0, 3) == 0 && !ids.empty()) {
      const RequestId victim =
          ids[ids.size() - rng.Between(1, std::min<int64_t>(40, std::ssize(ids)))];
      if (rng.Between(0, 1)) {
        h.Abort(victim);
      } else {
        h.Abort(victim, static_cast<int>(rng.Between(0, 2)));
      }
    }
    if (ids.size() % 256 == 0) h.scheduler().CheckIntegrity();
    h.TakeOutputs();
  }
  h.RunToEnd();
  for (RequestId id : ids) EXPECT_TRUE(h.finished(id));
  h.scheduler().CheckIntegrity();
  const SchedulerStats stats = h.scheduler().Stats();
  EXPECT_EQ(stats.blocks_free, 40);
  EXPECT_EQ(stats.host_blocks_used, 0);
  EXPECT_EQ(stats.running + stats.waiting + stats.swapped, 0);
  EXPECT_EQ(std::accumulate(std::begin(stats.requests_finished), std::end(stats.requests_finished),
                            uint64_t{0}),
            stats.requests_accepted);
  EXPECT_GT(stats.preemptions_recompute + stats.preemptions_swap, 0u);
}

}  // namespace
}  // namespace millrace::sched
