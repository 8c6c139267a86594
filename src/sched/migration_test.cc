// Requests that continue to run while they are handed over: exported KV that is pulled in rounds,
// and the hazards of copies in progress.
#include <gtest/gtest.h>

#include <vector>

#include "sched/testing/moves.h"

namespace millrace::sched {
namespace {

TEST(Pause, StopsTheRequestAndDelaysNoOther) {
  SchedulerOptions o = Roomy();
  o.stages = 2;
  Harness h({.scheduler = o});
  const RequestId paused = h.MustAdd(Prompt(8), MaxTokens(10));
  Moments(h, 5);
  const RequestId waiting = h.MustAdd(Prompt(8, 40), MaxTokens(10));
  const RequestId other = h.MustAdd(Prompt(8, 70), MaxTokens(10));
  for (RequestId id : {paused, waiting}) h.scheduler().Pause(id);
  EXPECT_EQ(h.scheduler().AtRest(paused), h.in_flight() == 0);
  EXPECT_TRUE(h.scheduler().AtRest(waiting)) << "it was never in a step";
  while (!h.finished(other)) ASSERT_TRUE(h.Turn());
  EXPECT_TRUE(h.scheduler().AtRest(paused));
  EXPECT_LT(h.outcome(paused).tokens.size(), 10u);
  EXPECT_TRUE(h.outcome(waiting).tokens.empty());
  EXPECT_FALSE(h.Turn()) << "only paused ones are left";
  h.Advance(Duration::Seconds(10));
  EXPECT_FALSE(h.scheduler().Stalled(h.now()).has_value()) << "they do not count as stuck";
  EXPECT_NE(h.scheduler().Inspect(paused, h.now())->waits_for, "");
  h.scheduler().Unpause(paused);
  h.scheduler().Unpause(waiting);
  h.RunToEnd();
  EXPECT_EQ(h.outcome(paused).tokens, h.model().Generate(Prompt(8), MaxTokens(10), 0, 10));
  EXPECT_EQ(h.outcome(waiting).tokens, h.model().Generate(Prompt(8, 40), MaxTokens(10), 0, 10));
  ExpectEmpty(h, o.num_blocks);
}

// A complete live migration: the computed KV is pulled while the source runs, then what was
// computed meanwhile, then the rest from the paused request.
TEST(Migration, InRoundsWhileTheSourceRuns) {
  Harness from({.scheduler = Roomy()}), to({.scheduler = Roomy()});
  const RequestId id = from.MustAdd(Prompt(30), MaxTokens(30));
  Moments(from, 10);
  auto exposed = from.scheduler().Export(id, from.now(), kHold);
  ASSERT_TRUE(exposed.has_value());
  ASSERT_EQ(exposed->computed_tokens(), 34);
  exposed->request.imported_tokens = {exposed->computed_tokens()};
  exposed->request.import_open = true;
  ASSERT_TRUE(to.AddAsIs(exposed->request).ok());
  to.Schedule();
  size_t delivered = exposed->request.resumed[0].output.size();
  for (int round = 0; round < 3; ++round) {
    Moments(from, 8);
    if (round == 2) {
      from.scheduler().Pause(id);
      while (!from.scheduler().AtRest(id)) from.Commit();
    }
    const auto more = round < 2 ? from.scheduler().Export(id, from.now(), kHold)
                                : from.scheduler().Detach(id, from.now(), kHold);
    const auto& output = more->request.resumed[0].output;
    ASSERT_TRUE(to.ExtendImport(id, {output.begin() + static_cast<long>(delivered), output.end()},
                                more->computed_tokens())
                    .ok());
    delivered = output.size();
  }
  to.scheduler().CloseImport(id, to.now());
  const std::vector<KvPull> pulls = to.TakePulls();
  ASSERT_EQ(pulls.size(), 4u);
  EXPECT_EQ(pulls[0].first_token, 0);
  for (size_t i = 0; i < pulls.size(); ++i) {
    if (i > 0) {
      EXPECT_EQ(pulls[i].first_token, pulls[i - 1].end_token);
    }
    EXPECT_EQ(to.scheduler().Inspect(id, to.now())->state, RequestState::kPulling);
    to.model().Pull(from.model(), from.scheduler().HeldBlocks(id), pulls[i].blocks,
                    pulls[i].first_token, pulls[i].end_token);
    to.scheduler().KvArrived(id, true, to.now());
  }
  from.scheduler().ReleaseKv(id);
  from.RunToEnd();
  const StepPlan* plan = to.Schedule();
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->tokens.size(), 1u) << "nothing is computed twice";
  to.RunToEnd();
  EXPECT_EQ(Joined(from.outcome(id).tokens, to.outcome(id).tokens),
            to.model().Generate(Prompt(30), MaxTokens(30), 0, 30));
  ExpectEmpty(from, 64);
  ExpectEmpty(to, 64);
}

TEST(Migration, ARoundWithoutKvMeansRecomputation) {
  Harness from({.scheduler = Roomy()}), to({.scheduler = Roomy()});
  const RequestId id = from.MustAdd(Prompt(30), MaxTokens(30));
  Moments(from, 10);
  auto exposed = from.scheduler().Export(id, from.now(), kHold);
  exposed->request.imported_tokens = {exposed->computed_tokens()};
  exposed->request.import_open = true;
  ASSERT_TRUE(to.AddAsIs(exposed->request).ok());
  to.Schedule();
  Moments(from, 8);
  const auto left = from.scheduler().Detach(id, from.now(), kHold);
  const auto& output = left->request.resumed[0].output;
  const auto delivered = static_cast<long>(exposed->request.resumed[0].output.size());
  ASSERT_TRUE(
      to.ExtendImport(id, {output.begin() + delivered, output.end()}, left->computed_tokens())
          .ok());
  to.scheduler().CloseImport(id, to.now());
  to.scheduler().KvArrived(id, false, to.now());
  to.scheduler().KvArrived(id, true, to.now());
  to.RunToEnd();
  EXPECT_EQ(Joined(from.outcome(id).tokens, to.outcome(id).tokens),
            to.model().Generate(Prompt(30), MaxTokens(30), 0, 30));
}

// However pulls and calls follow each other, the request does not run before its import is closed.
TEST(Migration, AnOpenImportDoesNotRun) {
  for (const bool pull_first : {true, false}) {
    Harness to({.scheduler = Roomy()});
    const RequestId id = to.MustAdd(Prompt(8), MaxTokens(5), [](NewRequest& r) {
      r.resumed = {{{5}}};
      r.imported_tokens = {8};
      r.import_open = true;
    });
    to.Schedule();
    ASSERT_EQ(to.TakePulls().size(), 1u);
    to.scheduler().KvArrived(id, true, to.now());
    to.scheduler().CheckIntegrity();
    EXPECT_EQ(to.Schedule(), nullptr) << "every pull has ended, but more may come";
    EXPECT_EQ(to.scheduler().Inspect(id, to.now())->waits_for,
              "more than the KV of 8 tokens from another stage");
    ASSERT_TRUE(to.ExtendImport(id, {6, 7}, 10).ok());
    const auto pulls = to.TakePulls();
    ASSERT_EQ(pulls.size(), 1u);
    EXPECT_EQ(pulls[0].first_token, 8);
    if (pull_first) to.scheduler().KvArrived(id, true, to.now());
    EXPECT_EQ(to.Schedule(), nullptr);
    to.scheduler().CloseImport(id, to.now());
    if (!pull_first) {
      EXPECT_EQ(to.Schedule(), nullptr) << "a pull is under way";
      EXPECT_EQ(to.ExtendImport(id, {8}, 11).code(), StatusCode::kFailedPrecondition) << "closed";
      to.scheduler().KvArrived(id, true, to.now());
    }
    const StepPlan* plan = to.Schedule();
    ASSERT_NE(plan, nullptr);
    EXPECT_EQ(plan->sequences[0].start, 10);
    to.scheduler().CloseImport(id, to.now());  // ignored
    to.Abort(id);
    to.Commit();
    ExpectEmpty(to, 64);
  }
}

// The blocks of an open import whose pulls have all ended belong to the request alone.
TEST(Migration, AnOpenImportLeavesNoPins) {
  Harness to({.scheduler = Roomy()});
  const RequestId id = to.MustAdd(Prompt(8), MaxTokens(5), [](NewRequest& r) {
    r.resumed = {{{5}}};
    r.imported_tokens = {8};
    r.import_open = true;
  });
  to.scheduler().CloseImport(RequestId(99), to.now());
  to.Schedule();
  to.scheduler().KvArrived(id, true, to.now());
  const auto left = to.scheduler().Detach(id, to.now(), std::nullopt);
  ExpectEmpty(to, 64);
  EXPECT_FALSE(left->request.import_open);
  EXPECT_TRUE(to.AddAsIs(left->request).ok()) << "the id may return at once";
}

TEST(Migration, AnImportIsClosedBeforeItBegins) {
  Harness to({.scheduler = Roomy()});
  const RequestId id = to.MustAdd(Prompt(8), MaxTokens(5), [](NewRequest& r) {
    r.resumed = {{{5}}};
    r.imported_tokens = {8};
    r.import_open = true;
  });
  to.scheduler().CloseImport(id, to.now());
  to.Schedule();
  to.scheduler().KvArrived(id, false, to.now());
  to.RunToEnd();
  EXPECT_EQ(to.outcome(id).finish, FinishReason::kLength);
  EXPECT_EQ(
      to.Add(Prompt(8), MaxTokens(5), [](NewRequest& r) { r.import_open = true; }).status().code(),
      StatusCode::kInvalidArgument)
      << "nothing to import";
}

TEST(Migration, RefusalsChangeNothing) {
  SchedulerOptions o = Small();
  o.num_blocks = 9;
  Harness to({.scheduler = o});
  const auto code = [&](RequestId id, std::vector<TokenId> more, int imported) {
    return to.ExtendImport(id, std::move(more), imported).code();
  };
  EXPECT_EQ(code(RequestId(9), {1}, 8), StatusCode::kFailedPrecondition);
  const RequestId id = to.MustAdd(Prompt(8), MaxTokens(20), [](NewRequest& r) {
    r.resumed = {{{5}}};
    r.imported_tokens = {8};
    r.import_open = true;
  });
  EXPECT_EQ(code(id, {1}, 9), StatusCode::kFailedPrecondition) << "it is still waiting";
  to.MustAdd(Prompt(20, 100), MaxTokens(4));
  to.Schedule();
  EXPECT_EQ(code(id, {1}, 10), StatusCode::kInvalidArgument) << "the last token is computed here";
  EXPECT_EQ(code(id, {1}, 7), StatusCode::kInvalidArgument) << "less than before";
  EXPECT_EQ(code(id, std::vector<TokenId>(19, 1), 9), StatusCode::kInvalidArgument) << "full";
  EXPECT_EQ(code(id, std::vector<TokenId>(9, 1), 17), StatusCode::kResourceExhausted)
      << "2 more blocks, 1 left";
  EXPECT_EQ(code(id, {1, 2}, 8), StatusCode::kOk) << "tokens alone";
  EXPECT_EQ(code(id, {3, 4}, 12), StatusCode::kOk);
  const std::vector<KvPull> pulls = to.TakePulls();
  ASSERT_EQ(pulls.size(), 2u);
  EXPECT_EQ(pulls[1].first_token, 8);
  EXPECT_EQ(pulls[1].end_token, 12);
  to.scheduler().KvArrived(id, false, to.now());
  // Detached before the last pull has ended: its blocks stay, and the id cannot be added again yet.
  const auto left = to.scheduler().Detach(id, to.now(), kHold);
  EXPECT_EQ(left->computed_tokens(), 0);
  EXPECT_EQ(left->request.resumed[0].output, (std::vector<TokenId>{5, 1, 2, 3, 4}));
  EXPECT_EQ(to.AddAsIs(left->request).code(), StatusCode::kUnavailable);
  EXPECT_EQ(to.scheduler().Stats().blocks_pinned, 3);
  to.scheduler().KvArrived(id, true, to.now());
  EXPECT_EQ(to.scheduler().Stats().blocks_pinned, 0);
  EXPECT_TRUE(to.AddAsIs(left->request).ok());
}

// Exported blocks are not reused, whatever happens to the request.
TEST(Export, HeldThroughPreemption) {
  SchedulerOptions o = Small();
  o.num_blocks = 12;
  Harness h({.scheduler = o});
  h.MustAdd(Prompt(8), MaxTokens(24));
  const RequestId last = h.MustAdd(Prompt(8, 100), MaxTokens(24));
  Moments(h, 6);
  const auto first = h.scheduler().Export(last, h.now(), kHold);
  ASSERT_EQ(first->computed_tokens(), 10);
  ASSERT_EQ(first->kv.front().blocks.size(), 3u);
  Moments(h, 4);
  const auto second = h.scheduler().Export(last, h.now(), kHold);
  EXPECT_EQ(second->computed_tokens(), 12);
  while (h.scheduler().Stats().preemptions_recompute == 0) ASSERT_TRUE(h.Turn());
  EXPECT_EQ(h.scheduler().HeldBlocks(last), second->kv.front().blocks);
  const auto third = h.scheduler().Export(last, h.now(), kHold);
  EXPECT_EQ(third->computed_tokens(), 0) << "its KV is elsewhere or dropped";
  EXPECT_EQ(h.scheduler().HeldBlocks(last), second->kv.front().blocks);
  h.scheduler().ReleaseKv(last);
  h.RunToEnd();
  ExpectEmpty(h, o.num_blocks);
}

SchedulerOptions Swapping() {
  SchedulerOptions o = Small();
  o.num_blocks = 8;
  o.num_host_blocks = 8;
  o.preemption = PreemptionMode::kSwap;
  o.stages = 2;
  return o;
}

// KV that a step in flight is swapping in does not count yet.
TEST(Export, NothingWhileItIsSwappedIn) {
  Harness h({.scheduler = Swapping()});
  h.MustAdd(Prompt(8), MaxTokens(16));
  const RequestId last = h.MustAdd(Prompt(8, 100), MaxTokens(16));
  int seen = 0;
  while (h.scheduler().HasWork()) {
    const StepPlan* plan = h.Schedule();
    if (!plan) {
      h.Commit();
      continue;
    }
    if (plan->swap_in.empty()) continue;
    ++seen;
    EXPECT_EQ(h.scheduler().Export(last, h.now(), kHold)->computed_tokens(), 0);
    EXPECT_TRUE(h.scheduler().HeldBlocks(last).empty());
    while (h.in_flight() > 0) h.Commit();
    EXPECT_GT(h.scheduler().Export(last, h.now(), kHold)->computed_tokens(), 8);
    h.scheduler().ReleaseKv(last);
  }
  EXPECT_GT(seen, 0);
  EXPECT_EQ(h.outcome(last).tokens, h.model().Generate(Prompt(8, 100), MaxTokens(16), 0, 16));
}

// Blocks that a step in flight still has to copy to the host are given to a request that imports:
// it pulls into them only when that step has ended.
TEST(Migration, PullsWaitForCopiesOutOfTheirBlocks) {
  Harness h({.scheduler = Swapping()});
  const RequestId first = h.MustAdd(Prompt(8), MaxTokens(16));
  h.Advance(Duration::Seconds(2));
  const RequestId victim = h.MustAdd(Prompt(8, 100), MaxTokens(16));
  const StepPlan* plan = h.Schedule();
  for (; !plan || plan->swap_out.empty(); plan = h.Schedule()) {
    if (!plan) h.Commit();
  }
  const size_t copied = plan->swap_out.size();
  ASSERT_GE(copied, 3u);
  // Older than the victim, so that it is admitted first.
  const RequestId older = h.MustAdd(Prompt(8, 40), MaxTokens(8), [](NewRequest& r) {
    r.times = RequestTimes{.arrived = Time{} + Duration::Seconds(1)};
    r.imported_tokens = {7};
  });
  h.Schedule();
  ASSERT_EQ(h.scheduler().Inspect(older, h.now())->state, RequestState::kPulling);
  EXPECT_TRUE(h.TakePulls().empty()) << "the victim's KV is still in the blocks";
  while (h.in_flight() > 0) h.Commit();
  ASSERT_EQ(h.TakePulls().size(), 1u);
  h.scheduler().KvArrived(older, false, h.now());
  h.RunToEnd();
  EXPECT_EQ(h.outcome(first).tokens, h.model().Generate(Prompt(8), MaxTokens(16), 0, 16));
  EXPECT_EQ(h.outcome(victim).tokens, h.model().Generate(Prompt(8, 100), MaxTokens(16), 0, 16));
  EXPECT_EQ(h.outcome(older).tokens, h.model().Generate(Prompt(8, 40), MaxTokens(8), 0, 8));
  ExpectEmpty(h, 8);
}

// No step can run before a pull has ended, and the pull's blocks wait for a copy that has no step
// to travel in: the copy is dropped.
TEST(Migration, CopiesWithoutAStepDoNotDelayPulls) {
  SchedulerOptions o = Swapping();
  o.num_blocks = 13;
  o.num_host_blocks = 13;
  o.stages = 1;
  Harness h({.scheduler = o});
  // Three of equal length, so that they need their next blocks at the same time.
  const RequestId three = h.MustAdd(Prompt(4), MaxTokens(12, 3), [](NewRequest& r) {
    r.resumed = {{{14, 15, 16}}, {{14, 15, 16}}, {{14, 15, 16}}};
  });
  const RequestId pulling = h.MustAdd(Prompt(24, 40), MaxTokens(12), [](NewRequest& r) {
    r.resumed = {{{7}}};
    r.imported_tokens = {24};
    r.import_open = true;
  });
  h.Schedule();
  const RequestId victim = h.MustAdd(Prompt(4, 100), MaxTokens(12));
  ASSERT_EQ(h.TakePulls().size(), 1u);
  for (int calls = 0; h.scheduler().Stats().swapped == 0; ++calls) {
    ASSERT_LT(calls, 100);
    Moments(h, 1);
  }
  ASSERT_EQ(h.in_flight(), 0);
  ASSERT_EQ(h.Schedule(), nullptr) << "three blocks are needed, fewer are left";
  ASSERT_TRUE(h.ExtendImport(pulling, {1, 2, 3, 4, 5, 6, 7, 8}, 32).ok());
  EXPECT_TRUE(h.TakePulls().empty());
  ASSERT_EQ(h.Schedule(), nullptr);
  ASSERT_EQ(h.TakePulls().size(), 1u);
  h.scheduler().CloseImport(pulling, h.now());
  EXPECT_EQ(h.scheduler().Inspect(victim, h.now())->state, RequestState::kPreempted);
  h.scheduler().KvArrived(pulling, false, h.now());
  h.scheduler().KvArrived(pulling, false, h.now());
  h.RunToEnd();
  EXPECT_EQ(h.outcome(victim).tokens, h.model().Generate(Prompt(4, 100), MaxTokens(12), 0, 12));
  for (int k = 0; k < 3; ++k) {
    EXPECT_EQ(h.outcome(three, k).tokens,
              h.model().Generate(Prompt(7), MaxTokens(9), SequenceSeed(0, k), 9));
  }
  ExpectEmpty(h, o.num_blocks);
}

}  // namespace
}  // namespace millrace::sched
