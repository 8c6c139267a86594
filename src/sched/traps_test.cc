// Regression tests for the known ways in which schedulers of this kind fail: leaks, stalls, thrash,
// late results, aborts at the wrong moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "base/test_scale.h"
#include "sched/testing/harness.h"

namespace millrace::sched {
namespace {

constexpr TokenId kEos = 0;

SchedulerOptions Small() {
  SchedulerOptions o;
  o.block_size = 4;
  o.num_blocks = 16;
  o.max_num_seqs = 8;
  o.max_num_batched_tokens = 64;
  o.max_model_len = 64;
  o.watermark = 0;
  o.preemption = PreemptionMode::kRecompute;
  o.prefix_caching = false;
  return o;
}

std::vector<TokenId> Prompt(int length, TokenId first = 10) {
  std::vector<TokenId> prompt(length);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

SamplingParams MaxTokens(int max_tokens, int n = 1) {
  SamplingParams params;
  params.max_tokens = max_tokens;
  params.n = n;
  return params;
}

std::string Refusal(Harness& h, int prompt, const SamplingParams& params) {
  return h.Add(Prompt(prompt), params).status().message();
}

// Trap 8, reliability 51, feature 16: what can never fit is refused at once, with the numbers.
TEST(Refusal, NamesTheNumbers) {
  SchedulerOptions o = Small();
  Harness h({.scheduler = o});
  EXPECT_EQ(Refusal(h, 0, MaxTokens(1)), "the prompt has no tokens");
  EXPECT_EQ(
      Refusal(h, 64, MaxTokens(1)),
      "the prompt has 64 tokens, and with at least one generated token that exceeds the maximum "
      "context length of 64");
  EXPECT_EQ(
      Refusal(h, 60, MaxTokens(5)),
      "the prompt (60 tokens) and max_tokens (5) exceed the maximum context length of 64 tokens "
      "by 1; shorten the prompt or lower max_tokens");
  EXPECT_EQ(Refusal(h, 10, MaxTokens(INT32_MAX)).substr(0, 50),
            "the prompt (10 tokens) and max_tokens (2147483647)");
  EXPECT_EQ(Refusal(h, 9, MaxTokens(16, 5)),
            "5 sequences of 9 prompt tokens and up to 16 generated tokens need 22 KV blocks of 4 "
            "tokens, and there are 16; lower max_tokens or n, or start with more KV blocks");
  EXPECT_EQ(Refusal(h, 9, MaxTokens(16, 3)), "");
  o.num_blocks = 8;
  Harness tight({.scheduler = o});
  EXPECT_EQ(Refusal(tight, 40, {}),
            "1 sequence of 40 prompt tokens and up to 1 generated tokens needs 11 KV blocks of 4 "
            "tokens, and there are 8; lower max_tokens or n, or start with more KV blocks");
  EXPECT_EQ(Refusal(tight, 30, {}), "");
}

TEST(Refusal, BoundedQueue) {
  SchedulerOptions o = Small();
  o.max_waiting = 2;
  Harness h({.scheduler = o});
  h.MustAdd(Prompt(4), MaxTokens(4));
  h.MustAdd(Prompt(4), MaxTokens(4));
  const Status full = h.Add(Prompt(4), MaxTokens(4)).status();
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(), "2 requests are waiting, the limit is 2; try again later");
  h.RunToEnd();
}

TEST(Refusal, ContradictoryOptions) {
  SchedulerOptions o = Small();
  o.preemption = PreemptionMode::kSwap;
  EXPECT_EQ(Scheduler::Create(o).status().message(),
            "preemption by swap needs host blocks, and num_host_blocks is 0");
  o = Small();
  o.stages = 0;
  EXPECT_EQ(Scheduler::Create(o).status().message(), "stages must be at least 1, got 0");
}

// Trap 5: a request that needs the whole pool runs, whatever the watermark.
TEST(Admission, TheWatermarkDoesNotApplyToAnIdlePool) {
  SchedulerOptions o = Small();
  o.watermark = 0.5;
  Harness h({.scheduler = o});
  const RequestId big = h.MustAdd(Prompt(60), MaxTokens(4));
  const RequestId next = h.MustAdd(Prompt(4), MaxTokens(4));
  EXPECT_EQ(h.Schedule()->sequences.size(), 1u);
  EXPECT_EQ(
      h.scheduler().Inspect(next, {})->waits_for,
      "KV blocks: it needs 1, 1 of 16 are available, and 8 are kept for those who run (0 come "
      "free with steps in flight)");
  h.Commit();
  h.RunToEnd();
  EXPECT_TRUE(h.finished(big) && h.finished(next));
}

// Trap 4: the whole prompt must fit, not its first chunk. With chunks of 4, a second prompt of 40
// does not start beside one of 40 in 16 blocks, so nobody is thrown out.
TEST(Admission, TheWholePrefillMustFit) {
  SchedulerOptions o = Small();
  o.max_num_batched_tokens = 4;
  Harness h({.scheduler = o});
  h.MustAdd(Prompt(40), MaxTokens(8));
  h.MustAdd(Prompt(40, 99), MaxTokens(8));
  h.RunToEnd();
  EXPECT_EQ(h.scheduler().Stats().preemptions_recompute, 0u);
}

// Trap 7: requests that wait or are swapped out do not use up places among those who run.
TEST(Admission, ParkedRequestsTakeNoPlaces) {
  SchedulerOptions o = Small();
  o.max_num_seqs = 2;
  o.num_host_blocks = 16;
  o.preemption = PreemptionMode::kSwap;
  Harness h({.scheduler = o});
  for (int i = 0; i < 6; ++i) h.MustAdd(Prompt(16, 10 * i), MaxTokens(30));
  h.RunToEnd();
  EXPECT_GT(h.scheduler().Stats().preemptions_swap, 0u);
}

// I1 restated: a later request never starts before an earlier one, small as it may be.
TEST(Admission, NobodyOvertakes) {
  Harness h({.scheduler = Small()});
  h.MustAdd(Prompt(40), MaxTokens(10));
  const RequestId large = h.MustAdd(Prompt(40, 99), MaxTokens(4));
  const RequestId small = h.MustAdd(Prompt(2), MaxTokens(2));
  h.Turn();
  EXPECT_EQ(h.scheduler().Inspect(large, {})->state, RequestState::kWaiting);
  EXPECT_EQ(h.scheduler().Inspect(small, {})->waits_for,
            "its turn: 1 requests are before it in the queue, first request 2");
  h.RunToEnd();
}

TEST(Admission, PriorityComesFirstAndThenArrival) {
  SchedulerOptions o = Small();
  o.policy = SchedulingPolicy::kPriority;
  o.max_num_seqs = 1;
  Harness h({.scheduler = o});
  std::vector<RequestId> ids;
  for (int priority : {5, 1, 5, 1}) {
    ids.push_back(
        h.MustAdd(Prompt(4), MaxTokens(1), [&](NewRequest& r) { r.priority = priority; }));
  }
  h.RunToEnd();
  std::vector<uint64_t> order;
  for (const RequestOutput& o : h.TakeOutputs()) order.push_back(o.request.value());
  EXPECT_EQ(order, (std::vector<uint64_t>{2, 4, 1, 3}));
}

// vLLM section 4.5: the latest gives way first, and with all its sequences or none.
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
    h.scheduler().DrainPreemptions(records);
  }
  EXPECT_EQ(records[0].victim, pair);
  EXPECT_EQ(records[0].chosen, PreemptionMode::kRecompute);
  EXPECT_GT(records[0].blocks_needed, records[0].blocks_available);
  EXPECT_EQ(h.scheduler().Inspect(pair, h.now())->blocks, 0);
  EXPECT_EQ(h.scheduler().Inspect(pair, h.now())->preemptions, 1);
  EXPECT_GT(h.scheduler().Inspect(first, h.now())->blocks, 0);
  EXPECT_GT(h.scheduler().Inspect(second, h.now())->blocks, 0);
  h.RunToEnd();
  records.clear();
  h.scheduler().DrainPreemptions(records);
  for (const PreemptionRecord& r : records) EXPECT_NE(r.victim, first) << "the oldest never yields";
}

// Feature 13: both costs are stated and the cheaper is chosen; either can be forced.
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
      h.scheduler().DrainPreemptions(records);
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
// pending until then, and nobody else is thrown out for them (trap 3).
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

// Reliability 52: all running requests need one more block at once; one victim at a time, and steps
// without a token stay few.
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
    records.clear();
    h.scheduler().DrainPreemptions(records);
    most = std::max(most, static_cast<int>(records.size()));
    h.Commit();
  }
  EXPECT_GT(h.scheduler().Stats().preemptions_recompute, 0u);
  EXPECT_LE(most, 2) << "four blocks were needed; each victim gives two";
}

// Reliability 50 and 53: three times what the pool holds, a stream of short ones behind two long
// ones: everybody finishes and nobody is preempted for ever.
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

// A request that comes back with much to replay does not stop those behind it either.
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

// Reliability 54: with a steady stream of short requests a long one starts after those before it.
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

// Trap 28: results of unknown, repeated or very late steps are dropped and counted.
TEST(Results, UnknownStepsAreDropped) {
  Harness h({.scheduler = Small()});
  const RequestId id = h.MustAdd(Prompt(4), MaxTokens(3));
  h.Schedule();
  StepResult kept;
  h.Commit([&](StepResult& r) { kept = r; });
  std::vector<RequestOutput> outputs;
  h.scheduler().Commit(kept, {}, outputs);
  kept.id = StepId(77);
  h.scheduler().Commit(kept, {}, outputs);
  EXPECT_TRUE(outputs.empty());
  EXPECT_EQ(h.scheduler().Stats().results_dropped, 2u);
  h.RunToEnd();
  EXPECT_EQ(h.outcome(id).tokens.size(), 3u);
}

// Trap 40: an error of one sequence is its own; a broken step ends those in it and nobody else.
TEST(Results, ErrorsStayWhereTheyBelong) {
  SchedulerOptions o = Small();
  o.max_num_seqs = 2;
  o.stages = 2;
  Harness h({.scheduler = o});
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(h.MustAdd(Prompt(4, i), MaxTokens(4)));
  h.Schedule();
  h.Schedule();
  h.Commit([](StepResult& r) { r.sequences[1].error = Internal("NaN logits"); });
  h.Commit([](StepResult& r) { r.error = Unavailable("the worker is gone"); });
  h.RunToEnd();
  EXPECT_EQ(h.outcome(ids[0]).finish, FinishReason::kLength);
  EXPECT_EQ(h.outcome(ids[1]).error.message(), "NaN logits");
  EXPECT_EQ(h.outcome(ids[2]).error.message(), "the worker is gone");
  EXPECT_EQ(h.outcome(ids[3]).finish, FinishReason::kError);
  EXPECT_EQ(h.scheduler().Stats().blocks_free, 16);
}

TEST(Results, ALyingExecutorFailsTheSequence) {
  const std::vector<std::function<void(StepResult&)>> lies = {
      [](StepResult& r) { r.sequences[0].token.reset(); },
      [](StepResult& r) { r.sequences.clear(); },
      [](StepResult& r) { r.sequences[0].id = SequenceId(99); }};
  for (const auto& lie : lies) {
    Harness h({.scheduler = Small()});
    const RequestId id = h.MustAdd(Prompt(4), MaxTokens(4));
    h.Schedule();
    h.Commit(lie);
    EXPECT_EQ(h.outcome(id).finish, FinishReason::kError);
    EXPECT_EQ(h.outcome(id).error.code(), StatusCode::kInternal);
    EXPECT_EQ(h.scheduler().Stats().blocks_free, 16);
  }
}

// While the prompt is computed for all n, its failure is everybody's.
TEST(Results, AFailedSharedPromptFailsAll) {
  Harness h({.scheduler = Small()});
  const RequestId id = h.MustAdd(Prompt(4), MaxTokens(4, 3));
  h.Schedule();
  h.Commit([](StepResult& r) { r.error = Internal("boom"); });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(h.outcome(id, i).finish, FinishReason::kError);
  EXPECT_FALSE(h.scheduler().HasWork());
}

// Feature 15, trap 42: nothing moves although something should; the report names who.
TEST(Watchdog, NamesTheRequestThatDoesNotMove) {
  SchedulerOptions o = Small();
  o.watchdog = Duration::Seconds(1);
  Harness h({.scheduler = o});
  h.Advance(Duration::Seconds(5));
  EXPECT_FALSE(h.scheduler().Stalled(h.now())) << "idle is not stalled";
  const RequestId id = h.MustAdd(Prompt(4), MaxTokens(4));
  EXPECT_FALSE(h.scheduler().Stalled(h.now()));
  h.Advance(Duration::Seconds(1.5));
  EXPECT_EQ(h.scheduler().Stalled(h.now())->id, id) << "nobody called Schedule";
  h.Schedule();
  EXPECT_FALSE(h.scheduler().Stalled(h.now()));
  h.Advance(Duration::Seconds(1.5));
  EXPECT_EQ(h.scheduler().Stalled(h.now())->id, id) << "the step does not come back";
  h.Commit();
  EXPECT_FALSE(h.scheduler().Stalled(h.now()));
  h.RunToEnd();
  h.Advance(Duration::Seconds(100));
  EXPECT_FALSE(h.scheduler().Stalled(h.now()));
}

TEST(Times, ComeWithTheVeryLastNews) {
  Harness h({.scheduler = Small()});
  h.Advance(Duration::Millis(5));
  h.MustAdd(Prompt(4), MaxTokens(3, 2));
  h.Advance(Duration::Millis(5));
  h.RunToEnd();
  const auto outputs = h.TakeOutputs();
  for (const RequestOutput& o : outputs) EXPECT_EQ(o.times.has_value(), &o == &outputs.back());
  const RequestTimes& t = *outputs.back().times;
  EXPECT_EQ(t.arrived.ns, 5'000'000);
  EXPECT_EQ(t.first_scheduled->ns, 10'000'000);
  EXPECT_GE(t.last_token->ns, t.first_token->ns);
}

// Traps 36 and 59: abort at every moment, with any number of steps in flight, whole or one of n:
// blocks come back, one end is told, the others are not disturbed.
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

// Done means 4, feature 9, reliability 56: after 10,000 random finishes and aborts nothing is lost.
TEST(Abort, TenThousandRandomEndsLeakNothing) {
  Rng rng(11);
  SchedulerOptions o = Small();
  o.num_blocks = 40;
  o.num_host_blocks = 20;
  o.preemption = PreemptionMode::kAuto;
  o.prefix_caching = true;
  o.stages = 2;
  o.max_waiting = 64;
  o.eos_token_ids = {kEos};
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
