// Migrations between two schedulers: rounds, the pause at a step boundary, and what is left if a
// side fails.
#include "cluster/control/transfers/migrations.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "base/testing/test_time.h"

namespace millrace::cluster {
namespace {

class MigrationsTest : public ::testing::Test {
 protected:
  static constexpr PipelineId kFrom{1}, kTo{2};
  static constexpr RequestId kRequest{7};

  static std::unique_ptr<sched::Scheduler> NewScheduler(int num_blocks) {
    sched::SchedulerOptions options;
    options.block_size = 4;
    options.num_blocks = num_blocks;
    options.max_model_len = 256;
    options.preemption = sched::PreemptionMode::kRecompute;
    return std::move(sched::Scheduler::Create(options)).value();
  }
  void Add(sched::Scheduler& to, RequestId id, int prompt_tokens, int max_tokens, int n = 1) {
    sched::NewRequest request{.id = id};
    request.prompt = std::make_shared<const std::vector<TokenId>>(prompt_tokens, 5);
    SamplingParams params;
    params.n = n;
    params.max_tokens = max_tokens;
    request.params = std::make_shared<const SamplingParams>(params);
    const Status added = to.Add(std::move(request), now_);
    ASSERT_TRUE(added.ok()) << added.message();
  }
  void Submit(int prompt_tokens, int max_tokens = 60, int n = 1) {
    Add(*source_, kRequest, prompt_tokens, max_tokens, n);
    Step();
  }
  const StepPlan* Schedule(sched::Scheduler& scheduler) {
    return scheduler.Schedule(now_, pulls_).plan;
  }
  void Commit(sched::Scheduler& scheduler, const StepPlan& plan, TokenId token = 9) {
    StepResult result{.id = plan.id};
    for (const SequenceStep& s : plan.sequences) {
      result.sequences.push_back({.id = s.id, .token = token});
    }
    EXPECT_TRUE(scheduler.Commit(result, now_, outputs_, pulls_).ok());
  }
  void Step(int steps = 1) {
    for (; steps > 0; --steps) Commit(*source_, *Schedule(*source_));
  }
  Status Start() { return migrations_.Start(kRequest, kFrom, *source_, kTo, *target_, now_); }
  // Starts the only pull that is due.
  void BeginRound() {
    (void)Schedule(*target_);
    ASSERT_EQ(pulls_.size(), 1u);
    blocks_ = migrations_.SourceOf(pulls_.front());
  }
  bool EndRound(bool complete = true) {
    pulls_.clear();
    return EndPull(complete);
  }
  bool EndPull(bool complete = true) {
    target_->KvArrived(kRequest, complete, now_);
    FetchedLayers fetched{std::vector<bool>(4, true), {2}};
    if (!complete) fetched.has_kv[1] = false;
    return migrations_.PullEnded(kRequest, fetched, *source_, *target_, now_, pulls_);
  }
  auto Pause() { return migrations_.Pause(kRequest, *source_, *target_, now_, pulls_); }
  void ExpectTheSourceContinues() {
    EXPECT_EQ(migrations_.Find(kRequest), nullptr);
    EXPECT_FALSE(target_->Peek(kRequest));
    EXPECT_TRUE(source_->HeldBlocks(kRequest).empty());
    EXPECT_NE(Schedule(*source_), nullptr);
  }

  Time now_ = At(1);
  std::unique_ptr<sched::Scheduler> source_ = NewScheduler(64), target_ = NewScheduler(64);
  Migrations migrations_{
      {.migrations_max = 1, .block_size = 4, .hold_limit = Duration::Seconds(30)}};
  std::vector<sched::KvPull> pulls_;
  std::vector<BlockIndex> blocks_;
  std::vector<RequestOutput> outputs_;
};

TEST_F(MigrationsTest, WholeBlocksAreCopiedWhileTheSourceRuns) {
  Submit(10);
  ASSERT_TRUE(Start().ok());
  BeginRound();
  EXPECT_EQ(pulls_[0].end_token, 8);
  EXPECT_EQ(blocks_, source_->HeldBlocks(kRequest));
  Step();
  EXPECT_TRUE(EndRound());
  EXPECT_EQ(migrations_.Pausing(), std::vector<RequestId>{kRequest});
}

TEST_F(MigrationsTest, ASecondRoundCopiesWhatWasComputedMeanwhile) {
  Submit(10);
  ASSERT_TRUE(Start().ok());
  BeginRound();
  Step(40);
  ASSERT_TRUE(EndRound());
  EXPECT_TRUE(migrations_.Pausing().empty());
  BeginRound();
  EXPECT_EQ(pulls_[0].first_token, 8);
  EXPECT_EQ(pulls_[0].end_token, 48);
  Step(3);
  ASSERT_TRUE(EndRound());
  ASSERT_EQ(migrations_.Pausing().size(), 1u);
  const auto paused = Pause();
  ASSERT_TRUE(paused);
  EXPECT_EQ(paused->outcome, Migrations::Outcome::kMoved);
  EXPECT_EQ(paused->migration.fetched->activations, (std::set<int>{2}));
}

TEST_F(MigrationsTest, TheRequestPausesAtAStepBoundary) {
  Submit(10);
  ASSERT_TRUE(Start().ok());
  BeginRound();
  const StepPlan plan = *Schedule(*source_);
  ASSERT_TRUE(EndRound());
  EXPECT_FALSE(Pause()) << "a step has it";
  Commit(*source_, plan);
  const auto paused = Pause();
  ASSERT_TRUE(paused);
  EXPECT_EQ(paused->outcome, Migrations::Outcome::kMoved);
  EXPECT_TRUE(paused->pulls_rest);
  EXPECT_EQ(paused->request->computed_tokens(), 11);
  EXPECT_FALSE(source_->Peek(kRequest));
  EXPECT_FALSE(source_->HeldBlocks(kRequest).empty()) << "the rest is there";
  EXPECT_EQ(Schedule(*target_), nullptr);
  ASSERT_EQ(pulls_.size(), 1u);
  EXPECT_EQ(pulls_[0].end_token, 11);
  target_->KvArrived(kRequest, true, now_);
  ASSERT_NE(Schedule(*target_), nullptr);
  EXPECT_EQ(migrations_.Find(kRequest), nullptr);
}

// Nothing is left to copy if the source has computed only whole blocks.
TEST_F(MigrationsTest, WithoutARestTheRequestRunsAtOnce) {
  Submit(8);
  ASSERT_TRUE(Start().ok());
  BeginRound();
  ASSERT_TRUE(EndRound());
  const auto paused = Pause();
  ASSERT_TRUE(paused);
  EXPECT_FALSE(paused->pulls_rest);
  EXPECT_TRUE(source_->HeldBlocks(kRequest).empty());
  const StepPlan* plan = Schedule(*target_);
  ASSERT_NE(plan, nullptr);
  EXPECT_EQ(plan->sequences.at(0).start, 8);
}

TEST_F(MigrationsTest, AFailedRoundLeavesTheRequestAtItsSource) {
  Submit(10);
  ASSERT_TRUE(Start().ok());
  BeginRound();
  EXPECT_FALSE(EndRound(false));
  migrations_.Abandon(kRequest, source_.get(), target_.get(), now_);
  ExpectTheSourceContinues();
}

TEST_F(MigrationsTest, APausedRequestContinuesIfItsTargetIsLost) {
  Submit(10);
  ASSERT_TRUE(Start().ok());
  BeginRound();
  ASSERT_TRUE(EndRound());
  source_->Pause(kRequest);
  EXPECT_TRUE(source_->AtRest(kRequest));
  EXPECT_EQ(Schedule(*source_), nullptr);
  (void)target_->Detach(kRequest, now_, std::nullopt);
  EXPECT_EQ(migrations_.Abandon(kRequest, source_.get(), nullptr, now_).to, kTo);
  ExpectTheSourceContinues();
}

// The end is in the step that the pause waits for.
TEST_F(MigrationsTest, ARequestThatHasEndedDoesNotMove) {
  Submit(10);
  ASSERT_TRUE(Start().ok());
  BeginRound();
  ASSERT_TRUE(EndRound());
  source_->Abort(kRequest, std::nullopt, now_, outputs_);
  const auto paused = Pause();
  ASSERT_TRUE(paused);
  EXPECT_EQ(paused->outcome, Migrations::Outcome::kEnded);
  EXPECT_FALSE(target_->Peek(kRequest));
  EXPECT_TRUE(source_->HeldBlocks(kRequest).empty());
}

TEST_F(MigrationsTest, ATargetWithoutBlocksForTheRestTakesNothing) {
  target_ = NewScheduler(5);
  Add(*target_, RequestId(8), 5, 4);
  Submit(11, /*max_tokens=*/4);
  ASSERT_TRUE(Start().ok());
  BeginRound();
  Step(2);
  ASSERT_TRUE(EndRound());
  const auto paused = Pause();
  ASSERT_TRUE(paused);
  EXPECT_EQ(paused->outcome, Migrations::Outcome::kNoRoom);
  EXPECT_EQ(paused->request->request.resumed.at(0).output.size(), 3u);
  EXPECT_FALSE(target_->Peek(kRequest));
  EXPECT_TRUE(source_->HeldBlocks(kRequest).empty());
}

TEST_F(MigrationsTest, RequestsThatCannotMigrateAreRefused) {
  EXPECT_EQ(Start().code(), StatusCode::kFailedPrecondition) << "unknown";
  Submit(3);
  EXPECT_EQ(Start().code(), StatusCode::kFailedPrecondition) << "no complete block";
  EXPECT_TRUE(source_->HeldBlocks(kRequest).empty());
  Step();
  ASSERT_TRUE(Start().ok());
  EXPECT_EQ(Start().code(), StatusCode::kResourceExhausted) << "one at a time";
}

// Each sequence's whole blocks are copied while all run, then what each has computed meanwhile.
TEST_F(MigrationsTest, SeveralSequencesMigrateTogether) {
  Submit(10, 60, /*n=*/2);
  ASSERT_TRUE(Start().ok());
  (void)Schedule(*target_);
  ASSERT_EQ(pulls_.size(), 2u);
  for (const sched::KvPull& pull : pulls_) {
    EXPECT_EQ(pull.end_token, 8) << pull.index;
    EXPECT_EQ(migrations_.SourceOf(pull), migrations_.SourceOf(pulls_[0])) << "they share both";
  }
  Step(3);
  pulls_.clear();
  EXPECT_TRUE(EndPull());
  EXPECT_TRUE(migrations_.Pausing().empty()) << "one pull has not ended";
  EXPECT_TRUE(EndPull());
  EXPECT_EQ(migrations_.Pausing(), std::vector<RequestId>{kRequest});
  const auto paused = Pause();
  ASSERT_TRUE(paused);
  EXPECT_EQ(paused->outcome, Migrations::Outcome::kMoved);
  ASSERT_EQ(pulls_.size(), 2u);
  EXPECT_EQ(std::pair(pulls_[0].first_token, pulls_[0].end_token), std::pair(8, 13));
  EXPECT_EQ(std::pair(pulls_[1].first_token, pulls_[1].end_token), std::pair(8, 12));
  for (int pull = 0; pull < 2; ++pull) target_->KvArrived(kRequest, true, now_);
  const StepPlan* plan = Schedule(*target_);
  ASSERT_NE(plan, nullptr);
  ASSERT_EQ(plan->sequences.size(), 2u);
  EXPECT_EQ(plan->sequences[0].start, 13);
  EXPECT_EQ(plan->sequences[1].start, 12);
}

TEST_F(MigrationsTest, ASequenceThatEndsMeanwhileStaysBehind) {
  Submit(10, 60, /*n=*/3);
  Step();
  ASSERT_TRUE(Start().ok());
  (void)Schedule(*target_);
  ASSERT_EQ(pulls_.size(), 3u);
  source_->Abort(kRequest, 0, now_, outputs_);
  pulls_.clear();
  for (int pull = 0; pull < 3; ++pull) ASSERT_TRUE(EndPull());
  const auto paused = Pause();
  ASSERT_TRUE(paused);
  EXPECT_EQ(paused->outcome, Migrations::Outcome::kMoved);
  ASSERT_EQ(pulls_.size(), 2u);
  for (int pull = 0; pull < 2; ++pull) target_->KvArrived(kRequest, true, now_);
  const StepPlan* plan = Schedule(*target_);
  ASSERT_NE(plan, nullptr);
  ASSERT_EQ(plan->sequences.size(), 2u);
  EXPECT_EQ(plan->sequences[0].start, 10) << "nothing is computed twice";
  target_->CheckIntegrity();
}

TEST_F(MigrationsTest, LeasesAreRenewedWhileTheTargetIsAlive) {
  Submit(10);
  ASSERT_TRUE(Start().ok());
  bool alive = false;
  const auto due = [&] {
    return migrations_.DueForRenewal(now_, [&](PipelineId) { return alive; }).size();
  };
  EXPECT_EQ(due(), 0u);
  now_ = now_ + Duration::Seconds(20);
  EXPECT_EQ(due(), 0u) << "silent";
  alive = true;
  EXPECT_EQ(due(), 1u);
  EXPECT_TRUE(migrations_.Renew(kRequest, *source_, now_));
  EXPECT_EQ(due(), 0u);
  now_ = now_ + Duration::Seconds(20);
  (void)Schedule(*source_);  // would release an expired hold
  EXPECT_FALSE(source_->HeldBlocks(kRequest).empty());
}

}  // namespace
}  // namespace millrace::cluster
