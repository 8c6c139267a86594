// Requests are moved at random between two schedulers. Whatever the moves, every sequence gets the
// same tokens as alone, each once; and at the end every block is free.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/testing/test_scale.h"
#include "sched/testing/moving_world.h"

namespace millrace::sched {
namespace {

// Four sequences of 40 tokens in runs of a power of two.
constexpr int kReservedBlocksLeast = 64;

SchedulerOptions RandomOptions(Rng& rng, int blocks_least) {
  SchedulerOptions o;
  o.block_size = kMovesBlockSize;
  o.max_model_len = 40;
  o.num_blocks = blocks_least + static_cast<int>(rng.Between(0, 12));
  o.num_host_blocks = static_cast<int>(rng.Between(0, 1) * rng.Between(1, 2 * o.num_blocks));
  o.max_num_seqs = static_cast<int>(rng.Between(4, 10));
  // Few: missing KV takes many steps, and others run out of blocks meanwhile.
  o.max_num_batched_tokens = static_cast<int>(rng.Between(1, rng.Between(0, 1) ? 6 : 64));
  o.stages = static_cast<int>(rng.Between(1, 4));
  o.prefix_caching = rng.Between(0, 1);
  o.watermark = rng.Between(0, 1) ? 0.0 : 0.1;
  o.preemption = !o.num_host_blocks  ? PreemptionMode::kRecompute
                 : rng.Between(0, 1) ? PreemptionMode::kSwap
                                     : PreemptionMode::kAuto;
  o.eos_token_ids = {kTestRequestEos};
  o.step_mix = rng.Between(0, 2) ? StepMix::kMixed : StepMix::kPrefillFirst;
  o.policy = static_cast<SchedulingPolicy>(rng.Between(0, 2));
  if (rng.Between(0, 7) == 0) {
    o.kv_policy = static_cast<KvPolicy>(rng.Between(0, 4));
    o.num_blocks += kReservedBlocksLeast;
  }
  return o;
}

TEST(Moves, LoseNothingWhateverTheSchedule) {
  MoveCounts counts;
  const uint64_t cases = 1000 * TestScale();
  for (uint64_t seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const auto test_requests = RandomRequests(rng, static_cast<int>(rng.Between(2, 10)), 24, 16, 4);
    // The largest: 23 shared tokens and 4 tails.
    const SchedulerOptions options[2] = {RandomOptions(rng, 26), RandomOptions(rng, 26)};
    MovingWorld(rng, test_requests, options, counts).Run();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(counts.cold, cases);
  EXPECT_GT(counts.warm, cases / 2);
  EXPECT_GT(counts.live, cases / 2);
  EXPECT_GT(counts.pulls, cases);
  EXPECT_GT(counts.sibling_pulls, cases / 2);
  EXPECT_GT(counts.partial, cases / 4);
  EXPECT_GT(counts.aborted, cases / 4);
  EXPECT_GT(counts.searches_again, cases / 20);
  std::printf(
      "%lu cold, %lu warm, %lu live, %lu broken, %lu refused, %lu pulls, %lu of siblings, %lu "
      "partial, %lu aborted\n",
      counts.cold, counts.warm, counts.live, counts.broken, counts.refused, counts.pulls,
      counts.sibling_pulls, counts.partial, counts.aborted);
}

}  // namespace
}  // namespace millrace::sched
