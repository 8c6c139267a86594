// What a request's time went into, on a manual clock. That the entries of every request add up to
// its whole time is checked by the harness, in all tests that use it; tests/scenarios/account.txt
// has a transcript.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "sched/testing/harness.h"
#include "sched/testing/small.h"
#include "sched/testing/test_requests.h"

namespace millrace::sched {
namespace {

TimeAccount AccountOf(Harness& h, RequestId id) { return *h.scheduler().Account(id, h.now()); }

Duration Took(const TimeAccount& account, TimeUse use, TimeCause cause) {
  Duration sum;
  for (const TimeEntry& entry : account.entries()) {
    if (entry.use == use && entry.cause == cause) sum = sum + entry.took;
  }
  return sum;
}

const TimeEntry* Entry(const TimeAccount& account, TimeUse use) {
  const auto found = std::ranges::find(account.entries(), use, &TimeEntry::use);
  return found == account.entries().end() ? nullptr : &*found;
}

void Step(Harness& h, int64_t ms) {
  ASSERT_NE(h.Schedule(), nullptr);
  h.Advance(Duration::Millis(ms));
  h.Commit();
}

TEST(Accounting, TheQueueIsDividedByWhatItsFirstRequestLacked) {
  SchedulerOptions o = Small();
  o.num_blocks = 6;
  o.max_num_seqs = 2;
  Harness h({.scheduler = o});
  const RequestId first = h.MustAdd(Prompt(16), MaxTokens(3));
  ASSERT_NE(h.Schedule(), nullptr);
  const RequestId second = h.MustAdd(Prompt(12, 50), MaxTokens(2));
  const RequestId third = h.MustAdd(Prompt(4, 90), MaxTokens(2));
  h.Advance(Duration::Millis(40));
  h.Commit();   // until here they waited for the step
  Step(h, 10);  // then for blocks
  Step(h, 10);
  ASSERT_TRUE(h.finished(first));
  Step(h, 10);
  const TimeAccount account = AccountOf(h, second);
  EXPECT_EQ(Took(account, TimeUse::kQueue, TimeCause::kStep), Duration::Millis(40));
  EXPECT_EQ(Took(account, TimeUse::kQueue, TimeCause::kBlocks), Duration::Millis(20));
  EXPECT_EQ(Took(account, TimeUse::kPrefill, TimeCause::kNone), Duration::Millis(10));
  EXPECT_EQ(Entry(account, TimeUse::kQueue)->running, 1);
  EXPECT_EQ(Entry(account, TimeUse::kQueue)->others, 0);
  EXPECT_EQ(Entry(account, TimeUse::kQueue)->ids.front(), first);
  const TimeAccount behind = AccountOf(h, third);
  EXPECT_EQ(Entry(behind, TimeUse::kQueue)->others, 1);
  EXPECT_EQ(Entry(behind, TimeUse::kQueue)->others_tokens, 12);
  EXPECT_EQ(Entry(behind, TimeUse::kQueue)->ids.front(), second);
}

TEST(Accounting, ADecodeBesideAPromptNamesItAsTheCauseOfTheGap) {
  SchedulerOptions o = Small();
  o.num_blocks = 32;
  Harness h({.scheduler = o});
  const RequestId chat = h.MustAdd(Prompt(4), MaxTokens(8));
  Step(h, 10);
  Step(h, 10);
  const RequestId prompt = h.MustAdd(Prompt(40, 50), MaxTokens(4));
  Step(h, 200);
  Step(h, 10);
  const TimeAccount account = AccountOf(h, chat);
  EXPECT_EQ(Took(account, TimeUse::kDecode, TimeCause::kPrompts), Duration::Millis(200));
  EXPECT_EQ(Took(account, TimeUse::kDecode, TimeCause::kNone), Duration::Millis(20));
  ASSERT_FALSE(account.gaps().empty());
  EXPECT_EQ(account.gaps()[0].took, Duration::Millis(200));
  EXPECT_EQ(account.gaps()[0].cause, TimeCause::kPrompts);
  EXPECT_EQ(account.gaps()[0].ids.front(), prompt);
  EXPECT_EQ(account.gaps()[0].others_tokens, 40);
  const TimeAccount others = AccountOf(h, prompt);
  const TimeEntry& prefill = *Entry(others, TimeUse::kPrefill);
  EXPECT_EQ(prefill.tokens, 40);
  EXPECT_EQ(prefill.steps, 1);
  EXPECT_EQ(prefill.others, 1);
  EXPECT_EQ(prefill.others_tokens, 1);
  EXPECT_EQ(prefill.ids.front(), RequestId()) << "it is not beside itself";
}

TEST(Accounting, APreemptedRequestKnowsWhoTookItsBlocksAndWhatItComputesAgain) {
  SchedulerOptions o = Small();
  o.num_blocks = 6;
  Harness h({.scheduler = o});
  const RequestId first = h.MustAdd(Prompt(8), MaxTokens(12));
  const RequestId second = h.MustAdd(Prompt(8, 50), MaxTokens(12));
  while (h.scheduler().Inspect(second, h.now())->preemptions == 0) Step(h, 10);
  while (!h.finished(first)) Step(h, 10);
  Step(h, 10);
  const TimeAccount account = AccountOf(h, second);
  const TimeEntry* preempted = Entry(account, TimeUse::kPreempted);
  ASSERT_NE(preempted, nullptr);
  EXPECT_GT(preempted->took, Duration{});
  EXPECT_EQ(preempted->ids.front(), first);
  const TimeEntry* again = Entry(account, TimeUse::kRecompute);
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->cause, TimeCause::kPreemption);
  EXPECT_EQ(again->took, Duration::Millis(10));
  EXPECT_GE(again->tokens, 8);
}

TEST(Accounting, LeftOutOfStepsItWaitsBehindThePromptsOfOthers) {
  SchedulerOptions o = Small();
  o.num_blocks = 32;
  o.step_mix = StepMix::kPrefillFirst;
  Harness h({.scheduler = o});
  const RequestId chat = h.MustAdd(Prompt(4), MaxTokens(8));
  Step(h, 10);
  const RequestId prompt = h.MustAdd(Prompt(40, 50), MaxTokens(4));
  Step(h, 150);  // the prompt alone
  Step(h, 10);
  const TimeAccount account = AccountOf(h, chat);
  const TimeEntry* wait = Entry(account, TimeUse::kWait);
  ASSERT_NE(wait, nullptr);
  EXPECT_EQ(wait->cause, TimeCause::kPrompts);
  EXPECT_EQ(wait->took, Duration::Millis(150));
  EXPECT_EQ(wait->others_tokens, 40);
  EXPECT_EQ(wait->ids.front(), prompt);
}

TEST(Accounting, TravelsToAnotherScheduler) {
  Harness from({.scheduler = Small()}), to({.scheduler = Small()});
  const RequestId id = from.MustAdd(Prompt(8), MaxTokens(6));
  Step(from, 10);
  Step(from, 10);
  ASSERT_NE(from.Schedule(), nullptr);
  from.Advance(Duration::Millis(7));  // into a step that is lost
  std::vector<DetachedRequest> left = from.scheduler().DetachAll(from.now());
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].request.account.until(), from.now());
  left[0].request.account.Enter(TimeCause::kLoss);
  to.Advance(Duration::Millis(27));
  ASSERT_TRUE(to.AddAsIs(left[0].request).ok());
  to.Advance(Duration::Millis(100));
  Step(to, 20);
  const TimeAccount account = AccountOf(to, id);
  account.CheckIntegrity();
  EXPECT_EQ(account.until() - account.begin(), Duration::Millis(147));
  EXPECT_EQ(Took(account, TimeUse::kDecode, TimeCause::kNone), Duration::Millis(17));
  EXPECT_EQ(Took(account, TimeUse::kRequeue, TimeCause::kLoss), Duration::Millis(100));
  EXPECT_EQ(Took(account, TimeUse::kRecompute, TimeCause::kLoss), Duration::Millis(20));
  to.RunToEnd();
}

// "More KV memory" would be no cure for a lost request that waits for a place among the sequences.
TEST(Accounting, WhatItWaitsForIsNamedAlsoAfterALoss) {
  SchedulerOptions one = Small();
  one.max_num_seqs = 1;
  Harness from({.scheduler = Small()}), to({.scheduler = one});
  from.MustAdd(Prompt(8), MaxTokens(6));
  Step(from, 10);
  std::vector<DetachedRequest> left = from.scheduler().DetachAll(from.now());
  ASSERT_EQ(left.size(), 1u);
  left[0].request.account.Enter(TimeCause::kLoss);
  left[0].request.id = RequestId(7);  // the other scheduler has requests of its own
  to.MustAdd(Prompt(4), MaxTokens(8));
  Step(to, 10);
  ASSERT_TRUE(to.AddAsIs(left[0].request).ok());
  Step(to, 30);
  Step(to, 30);
  const TimeAccount account = AccountOf(to, RequestId(7));
  account.CheckIntegrity();
  EXPECT_GE(Took(account, TimeUse::kQueue, TimeCause::kSequences), Duration::Millis(50));
  EXPECT_LE(Took(account, TimeUse::kRequeue, TimeCause::kLoss), Duration::Millis(10));
  to.RunToEnd();
}

TEST(Accounting, SequencesOfAPromptShareOneAccount) {
  Harness h({.scheduler = Small()});
  const RequestId id = h.MustAdd(Prompt(8), MaxTokens(4, 3));
  Step(h, 10);
  for (int i = 0; i < 3; ++i) Step(h, 10);
  const TimeAccount account = AccountOf(h, id);
  EXPECT_EQ(account.until() - account.begin(), Duration::Millis(40));
  account.CheckIntegrity();
  h.RunToEnd();
}

// Random requests with preemptions, swaps and aborts, while time passes anywhere. The harness
// checks the account of each that ends.
TEST(Accounting, AddsUpWhateverHappens) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rng rng(seed);
    SchedulerOptions o = Small();
    o.num_blocks = 14;
    o.num_host_blocks = seed % 2 == 0 ? 8 : 0;
    o.preemption = PreemptionMode::kAuto;
    o.costs = {.prefill_tokens_per_s = seed % 4 == 0 ? 1.0 : 1e9};
    o.stages = static_cast<int>(1 + seed % 3);
    o.prefix_caching = seed % 5 == 0;
    o.max_num_batched_tokens = 20;
    if (seed % 7 == 0) o.step_mix = StepMix::kPrefillFirst;
    Harness h({.scheduler = o, .vocab_size = kTestRequestVocab});
    std::vector<RequestId> ids;
    for (const TestRequest& q : RandomRequests(rng, 20, 16, 12, 2)) {
      ids.push_back(h.MustAdd(q.prompt, q.params));
      for (int64_t turns = rng.Between(0, 3); turns > 0; --turns) {
        h.Advance(Duration::Micros(rng.Between(0, 3000)));
        h.Turn();
        h.Advance(Duration::Micros(rng.Between(0, 3000)));
        for (RequestId id : ids) {
          const auto account = h.scheduler().Account(id, h.now());
          if (account) account->CheckIntegrity();
        }
      }
      if (rng.Between(0, 6) == 0)
        h.Abort(ids[static_cast<size_t>(rng.Between(0, std::ssize(ids) - 1))]);
    }
    while (h.scheduler().HasWork()) {
      h.Advance(Duration::Micros(rng.Between(0, 3000)));
      ASSERT_TRUE(h.Turn());
    }
  }
}

}  // namespace
}  // namespace millrace::sched
