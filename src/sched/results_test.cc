// Late, wrong and failed results; the watchdog; times.
#include <gtest/gtest.h>

#include "core/no_token_left.h"
#include "sched/testing/harness.h"
#include "sched/testing/small.h"

namespace millrace::sched {
namespace {

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

// Trap 40: an error of one sequence affects only that sequence; a failed step ends only those in
// it.
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

// The masks of one sequence leave no token: it ends with what it has, and is no error.
TEST(Results, ASequenceWithoutTokensLeftEndsLikeOneThatIsFull) {
  for (const int after : {0, 2}) {
    for (const int n : {1, 2}) {
      Harness h({.scheduler = Small()});
      const RequestId id = h.MustAdd(Prompt(4), MaxTokens(6, n));
      const auto none_left = [](StepResult& r) {
        r.sequences[0].token.reset();
        r.sequences[0].error = NoTokenLeft("none");
      };
      for (int step = 0; step < after; ++step) {
        h.Schedule();
        h.Commit();
      }
      h.Schedule();
      h.Commit(none_left);
      EXPECT_EQ(h.outcome(id, 0).finish, FinishReason::kLength);
      EXPECT_EQ(h.outcome(id, 0).tokens.size(), static_cast<size_t>(after));
      h.RunToEnd();
      // At the first token it is the same for all; later the others go on.
      if (n > 1) EXPECT_EQ(h.outcome(id, 1).tokens.size(), after == 0 ? 0u : 6u);
      EXPECT_EQ(h.scheduler().Stats().blocks_free, 16);
      EXPECT_FALSE(h.scheduler().HasWork());
    }
  }
}

TEST(Results, AWrongResultFailsTheSequence) {
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

// While the prompt is computed for all n, its failure affects all.
TEST(Results, AFailedSharedPromptFailsAll) {
  Harness h({.scheduler = Small()});
  const RequestId id = h.MustAdd(Prompt(4), MaxTokens(4, 3));
  h.Schedule();
  h.Commit([](StepResult& r) { r.error = Internal("boom"); });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(h.outcome(id, i).finish, FinishReason::kError);
  EXPECT_FALSE(h.scheduler().HasWork());
}

// Feature 15, trap 42: there is work but no progress; the report names the request.
TEST(Watchdog, NamesTheStalledRequest) {
  SchedulerOptions o = Small();
  o.watchdog = Duration::Seconds(1);
  Harness h({.scheduler = o});
  h.Advance(Duration::Seconds(5));
  EXPECT_FALSE(h.scheduler().Stalled(h.now())) << "idle is not stalled";
  const RequestId id = h.MustAdd(Prompt(4), MaxTokens(4));
  EXPECT_FALSE(h.scheduler().Stalled(h.now()));
  h.Advance(Duration::Seconds(1.5));
  EXPECT_EQ(h.scheduler().Stalled(h.now())->id, id) << "Schedule was not called";
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

TEST(Times, ComeWithTheLastOutput) {
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

}  // namespace
}  // namespace millrace::sched
