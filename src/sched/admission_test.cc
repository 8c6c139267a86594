// Admission: refusals, the watermark, whole prefills, order. Each test is a known failure of
// schedulers of this kind.
#include <gtest/gtest.h>

#include "sched/testing/harness.h"
#include "sched/testing/small.h"

namespace millrace::sched {
namespace {

std::string Refusal(Harness& h, int prompt, const SamplingParams& params) {
  return h.Add(Prompt(prompt), params).status().message();
}

// Trap 8, reliability 51, feature 16: a request that can never fit is refused at once, with the
// numbers.
TEST(Refusal, StatesTheNumbers) {
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
      "KV blocks: it needs 1, 1 of 16 are available, and 8 are kept for running requests (0 come "
      "free with steps in flight)");
  h.Commit();
  h.RunToEnd();
  EXPECT_TRUE(h.finished(big) && h.finished(next));
}

// Trap 4: the whole prompt must fit, not only its first chunk. With chunks of 4, a second prompt of
// 40 does not start beside one of 40 in 16 blocks, so neither is preempted.
TEST(Admission, TheWholePrefillMustFit) {
  SchedulerOptions o = Small();
  o.max_num_batched_tokens = 4;
  Harness h({.scheduler = o});
  h.MustAdd(Prompt(40), MaxTokens(8));
  h.MustAdd(Prompt(40, 99), MaxTokens(8));
  h.RunToEnd();
  EXPECT_EQ(h.scheduler().Stats().preemptions_recompute, 0u);
}

// Trap 7: requests that wait or are swapped out do not count as running sequences.
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

// I1 restated: a later request never starts before an earlier one, however small it is.
TEST(Admission, NoRequestOvertakes) {
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

}  // namespace
}  // namespace millrace::sched
