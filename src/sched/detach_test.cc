// Requests that leave a scheduler and continue in another: at every moment, in every state, with
// and without their KV, the answer equals that of a request that stayed.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "sched/testing/moves.h"
#include "sched/testing/test_requests.h"

namespace millrace::sched {
namespace {

// Completes the pulls of `to` with the KV that `from` holds.
void Carry(Harness& from, Harness& to) {
  for (const KvPull& pull : to.TakePulls()) {
    const auto held = from.scheduler().HeldBlocks(pull.id);
    to.model().Pull(from.model(), held, pull.blocks, pull.first_token, pull.end_token);
    to.scheduler().KvArrived(pull.id, true, to.now());
  }
}

// Three sequences with EOS, penalties and prompt log-probabilities, cut at every moment.
TEST(Detach, AtEveryMomentOfSeveralSequences) {
  for (const int stages : {1, 2, 3}) {
    for (const bool eos : {false, true}) {
      TestRequest q{.prompt = Prompt(9), .params = MaxTokens(9, 3), .seed = eos ? 77u : 78u};
      q.params.ignore_eos = !eos;
      if (eos) q.params.stop_token_ids = {11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53};
      q.params.frequency_penalty = 1;
      q.params.prompt_logprobs = 0;
      SchedulerOptions o = Roomy();
      o.stages = stages;
      o.max_num_batched_tokens = 5;
      o.eos_token_ids = {kTestRequestEos};
      bool ended = false;
      int cuts = 0;
      for (; !ended; ++cuts) {
        SCOPED_TRACE(testing::Message() << stages << " stages, eos " << eos << ", cut " << cuts);
        Harness before({.scheduler = o, .vocab_size = kTestRequestVocab});
        Harness after({.scheduler = o, .vocab_size = kTestRequestVocab});
        const RequestId id =
            before.MustAdd(q.prompt, q.params, [&](NewRequest& r) { r.seed = q.seed; });
        Moments(before, cuts);
        const auto left = before.scheduler().Detach(id, before.now(), std::nullopt);
        ended = before.finished(id);
        ASSERT_EQ(left.has_value(), !ended);
        if (left) {
          ASSERT_TRUE(after.AddAsIs(left->request).ok());
        }
        before.RunToEnd();
        after.RunToEnd();
        ExpectEmpty(before, o.num_blocks);
        ExpectEmpty(after, o.num_blocks);
        int last_output = 0;
        for (auto* side : {&before, &after}) {
          for (const RequestOutput& output : side->TakeOutputs())
            last_output += output.times.has_value();
        }
        EXPECT_EQ(last_output, 1);
        before.MustAdd(Prompt(2), MaxTokens(1));
        before.RunToEnd();
        EXPECT_EQ(before.model().num_sequences(), 1) << "the stage released it";
        for (int k = 0; k < 3; ++k) {
          const SequenceOutcome& a = before.outcome(id, k);
          const SequenceOutcome& b = after.outcome(id, k);
          EXPECT_EQ(Joined(a.tokens, b.tokens), Expected(q, k)) << "sequence " << k;
          EXPECT_NE(a.finish.has_value(), b.finish.has_value()) << "delivered once";
          EXPECT_EQ(a.prompt_logprobs.size() + b.prompt_logprobs.size(), 8u) << "delivered once";
        }
      }
      EXPECT_GT(cuts, 10);
    }
  }
}

// What a lost worker had computed counts as recomputed, and a prompt without a token does not.
TEST(Detach, CountsWhatIsComputedAgain) {
  for (int cut = 1; cut < 20; ++cut) {
    Harness before({.scheduler = Roomy()}), after({.scheduler = Roomy()});
    const RequestId id = before.MustAdd(Prompt(10), MaxTokens(20));
    Moments(before, cut);
    auto left = before.scheduler().Detach(id, before.now(), kHold);
    ASSERT_TRUE(left.has_value());
    const auto delivered = static_cast<int>(before.outcome(id).tokens.size());
    ASSERT_TRUE(after.AddAsIs(left->request).ok());
    after.RunToEnd();
    EXPECT_EQ(after.scheduler().Stats().prompt_tokens_recomputed,
              delivered == 0 ? 0u : 10u + static_cast<unsigned>(delivered) - 1u)
        << "cut at " << cut;
    before.scheduler().ReleaseKv(id);
    before.RunToEnd();
  }
}

// Penalties count tokens that were generated elsewhere, although their KV is not computed here.
TEST(Detach, PenaltiesCountImportedTokens) {
  SamplingParams params = MaxTokens(20);
  params.frequency_penalty = 0.7;
  params.presence_penalty = 0.2;
  Harness alone({.scheduler = Roomy()});
  const RequestId whole = alone.MustAdd(Prompt(10), params);
  alone.RunToEnd();
  for (int cut = 1; cut < 38; ++cut) {
    Harness before({.scheduler = Roomy()}), after({.scheduler = Roomy()});
    const RequestId id = before.MustAdd(Prompt(10), params);
    Moments(before, cut);
    auto left = before.scheduler().Detach(id, before.now(), kHold);
    ASSERT_TRUE(left.has_value());
    const int known = 10 + static_cast<int>(before.outcome(id).tokens.size());
    ASSERT_EQ(left->computed_tokens(), cut < 2 ? 0 : known - 1);
    left->request.imported_tokens = {left->computed_tokens()};
    ASSERT_TRUE(after.AddAsIs(left->request).ok());
    after.Schedule();
    Carry(before, after);
    after.RunToEnd();
    EXPECT_EQ(Joined(before.outcome(id).tokens, after.outcome(id).tokens),
              alone.outcome(whole).tokens)
        << "cut at " << cut;
    if (cut >= 2) {
      EXPECT_EQ(after.scheduler().Stats().prompt_tokens_recomputed, 0u);
    }
    before.scheduler().ReleaseKv(id);
    before.RunToEnd();
    ExpectEmpty(before, 64);
    ExpectEmpty(after, 64);
  }
}

TEST(Detach, KeepsAgePositionAndTimes) {
  Harness before({.scheduler = Roomy()}), after({.scheduler = Roomy()});
  const RequestId old = before.MustAdd(Prompt(8), MaxTokens(20));
  before.Advance(Duration::Seconds(1));
  Moments(before, 4);
  after.Advance(Duration::Seconds(5));
  const RequestId young =
      after.MustAdd(Prompt(8, 100), MaxTokens(3), [](NewRequest& r) { r.id = RequestId(50); });
  after.Advance(Duration::Seconds(5));
  const auto left = before.scheduler().DetachAll(before.now());
  ASSERT_EQ(left.size(), 1u);
  ASSERT_TRUE(after.AddAsIs(left[0].request).ok());
  EXPECT_EQ(after.scheduler().Inspect(old, after.now())->age, Duration::Seconds(10));
  const auto all = after.scheduler().InspectAll(after.now());
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].id, old) << "the older is first although it was added last";
  EXPECT_EQ(all[1].id, young);
  after.RunToEnd();
  for (const RequestOutput& output : after.TakeOutputs()) {
    if (output.request != old || !output.times) continue;
    EXPECT_EQ(output.times->arrived, Time{});
    EXPECT_EQ(output.times->first_scheduled, Time{} + Duration::Seconds(1));
    EXPECT_EQ(output.times->first_token, Time{} + Duration::Seconds(1));
    EXPECT_GT(*output.times->last_token, Time{} + Duration::Seconds(9));
  }
}

TEST(Detach, AllInOrderAndInEveryState) {
  SchedulerOptions o = Small();
  o.num_host_blocks = 16;
  o.preemption = PreemptionMode::kSwap;
  o.max_num_seqs = 4;
  Harness h({.scheduler = o});
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(h.MustAdd(Prompt(12, 50 * i), MaxTokens(30)));
  const auto swapped = [&] { return h.scheduler().Stats().swapped; };
  while (swapped() == 0) h.Turn();
  EXPECT_GT(h.scheduler().Stats().waiting, 0);
  EXPECT_GT(h.scheduler().Stats().running, 0);
  h.Schedule();  // and one in flight
  const auto left = h.scheduler().DetachAll(h.now());
  ASSERT_EQ(left.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(left[i].request.id, ids[i]);
  EXPECT_EQ(h.scheduler().Stats().requests_detached, 6u);
  h.TakeOutputs();
  h.Commit();
  EXPECT_TRUE(h.TakeOutputs().empty()) << "a request that left gets no output";
  ExpectEmpty(h, o.num_blocks);
  // They may return to the same scheduler.
  for (const DetachedRequest& d : left) ASSERT_TRUE(h.AddAsIs(d.request).ok());
  h.RunToEnd();
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(h.outcome(ids[i]).tokens,
              h.model().Generate(Prompt(12, 50 * static_cast<int>(i)), MaxTokens(30), 0, 30));
  }
  ExpectEmpty(h, o.num_blocks);
}

TEST(Detach, BackAtOnceWhileItsStepIsInFlight) {
  SchedulerOptions o = Roomy();
  o.stages = 2;
  Harness h({.scheduler = o});
  const RequestId id = h.MustAdd(Prompt(9), MaxTokens(10));
  Moments(h, 3);
  ASSERT_EQ(h.in_flight(), 1);
  const auto left = h.scheduler().Detach(id, h.now(), std::nullopt);
  EXPECT_FALSE(h.scheduler().Detach(id, h.now(), std::nullopt).has_value());
  ASSERT_TRUE(h.AddAsIs(left->request).ok());
  h.RunToEnd();
  EXPECT_EQ(h.outcome(id).tokens, h.model().Generate(Prompt(9), MaxTokens(10), 0, 10));
  ExpectEmpty(h, o.num_blocks);
}

TEST(Detach, HandedRequestsMayWaitBeyondTheLimit) {
  SchedulerOptions o = Roomy();
  o.max_waiting = 2;
  Harness before({.scheduler = Roomy()}), after({.scheduler = o});
  for (int i = 0; i < 3; ++i) before.MustAdd(Prompt(8), MaxTokens(4));
  for (int i = 0; i < 2; ++i) {
    after.MustAdd(Prompt(8), MaxTokens(4), [&](NewRequest& r) { r.id = RequestId(100 + i); });
  }
  EXPECT_EQ(after.Add(Prompt(8), MaxTokens(4)).status().code(), StatusCode::kResourceExhausted);
  const auto left = before.scheduler().DetachAll(before.now());
  EXPECT_TRUE(after.AddAsIs(left[0].request).ok());
  EXPECT_TRUE(after.AddAsIs(left[1].request).ok());
  EXPECT_EQ(after.AddAsIs(left[2].request).code(), StatusCode::kResourceExhausted);
}

TEST(Detach, InvalidResumptionsAreRefused) {
  Harness h({.scheduler = Roomy()});
  const auto refuse = [&](int n, std::vector<ResumedSequence> resumed,
                          std::vector<int> imported = {}) {
    return h
        .Add(Prompt(8), MaxTokens(5, n),
             [&](NewRequest& r) {
               r.resumed = std::move(resumed);
               r.imported_tokens = std::move(imported);
             })
        .status()
        .code();
  };
  EXPECT_EQ(refuse(2, {{{1}}}), StatusCode::kInvalidArgument) << "one of two";
  EXPECT_EQ(refuse(2, {{{1}, true}, {{2}, true}}), StatusCode::kInvalidArgument) << "both ended";
  EXPECT_EQ(refuse(2, {{{1}}, {{1, 2, 3, 4, 5}}}), StatusCode::kInvalidArgument) << "full";
  EXPECT_EQ(refuse(2, {{{1}}, {{2}}}, {4}), StatusCode::kInvalidArgument) << "KV of one of two";
  EXPECT_EQ(refuse(2, {{{1}}, {{2}}}, {4, 9}), StatusCode::kInvalidArgument) << "all it has";
  EXPECT_EQ(refuse(2, {{{1}}, {{2}}}, {-1, 4}), StatusCode::kInvalidArgument);
  EXPECT_EQ(refuse(2, {{{1}}, {{2}, true}}, {8, 8}), StatusCode::kInvalidArgument) << "ended";
  EXPECT_EQ(refuse(2, {{{1}}, {{2}, true}}, {8, 0}), StatusCode::kOk);
  EXPECT_EQ(refuse(2, {{{1}}, {{1, 2, 3, 4, 5}, true}}), StatusCode::kOk) << "full, but ended";
}

}  // namespace
}  // namespace millrace::sched
