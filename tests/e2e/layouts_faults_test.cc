// Promises 1 and 2 over clusters that lose, drain and gain workers: the answers are those of a
// plain engine, at whichever token a worker was killed.
#include <atomic>
#include <chrono>
#include <thread>

#include "base/rng.h"
#include "layout_harness.h"

namespace millrace {
namespace {

#ifdef MILLRACE_SANITIZED
constexpr size_t kIndexStep = 6;
#else
constexpr size_t kIndexStep = 1;
#endif

// A worker is killed at the very moment a token is told, for every index of a stream's tokens and
// for each of a few streams. A spare one takes its place.
class KilledAtEveryToken : public LayoutTest {
 protected:
  // `least_fetched`: of the requests that lost their pipeline, the share that continues with the KV
  // of the workers that live. The others compute every layer again.
  void Sweep(const Plan& plan, double least_fetched) {
    static const std::vector<std::string> expected = AnswersAlone(FewStreams());
    StartWithWorkers(plan);
    if (HasFatalFailure()) return;
    AddWorker();  // the spare
    uint64_t kills = 0;
    for (size_t stream = 0; stream < FewStreams().size(); ++stream) {
      for (size_t index = 0; index < kStreamTokens; index += kIndexStep) {
        SCOPED_TRACE("stream " + std::to_string(stream) + " at token " + std::to_string(index));
        std::atomic<bool> killed = false;
        Ask(FewStreams(), [&](size_t test_request, int sequence, size_t tokens) {
          if (test_request != stream || sequence != 0 || tokens <= index || killed) return;
          killed = KillOne(stream + index / kIndexStep);
        });
        ExpectAnswers(expected);
        if (HasFailure()) return;
        kills += killed;
        Replace(kills);
      }
    }
    ExpectKills(kills, FewStreams().size() * (kStreamTokens / kIndexStep));
    EXPECT_GE(static_cast<double>(Counters().fetched),
              static_cast<double>(Counters().replays) * least_fetched);
  }

  // With all test requests at once: the first of them to reach the index is the moment.
  void SweepUnderLoad(const Plan& plan) {
    StartWithWorkers(plan);
    if (HasFatalFailure()) return;
    AddWorker();
    uint64_t kills = 0;
    for (size_t index = 0; index < kStreamTokens; index += kIndexStep) {
      SCOPED_TRACE("at token " + std::to_string(index));
      std::atomic<bool> killed = false;
      Ask(ManyRequests(), [&](size_t, int, size_t tokens) {
        if (tokens > index && !killed) killed = KillOne(index / kIndexStep);
      });
      ExpectManyAnswers();
      if (HasFailure()) return;
      kills += killed;
      Replace(kills);
    }
    ExpectKills(kills, kStreamTokens / kIndexStep);
  }

 private:
  void Replace(uint64_t kills) {
    ASSERT_TRUE(WaitFor([&](const cluster::ClusterStatus& status) {
      return status.counters.workers_lost == kills;
    }));
    AddWorkerUntilReady();
  }
  void ExpectKills(uint64_t kills, uint64_t expected) {
    EXPECT_EQ(kills, expected);
    const cluster::ControllerCounters counters = Counters();
    EXPECT_GT(counters.replays, 0u);
    EXPECT_GT(counters.computed_in_part, 0u) << "the others still hold their layers";
    RecordProperty("kills", std::to_string(kills));
    RecordProperty("replays", std::to_string(counters.replays));
    RecordProperty("fetched", std::to_string(counters.fetched));
    RecordProperty("computed_in_part", std::to_string(counters.computed_in_part));
  }
  bool KillOne(size_t turn) {
    std::vector<std::string> holders;
    for (const cluster::WorkerStatus& worker : Describe().workers) {
      if (!worker.layers.empty()) holders.push_back(worker.name);
    }
    if (holders.empty()) return false;
    cluster_->KillWorker(holders[turn % holders.size()]);
    return true;
  }
  void AddWorkerUntilReady() {
    AddWorker();
    ASSERT_TRUE(WaitFor([&](const cluster::ClusterStatus& status) {
      return !status.missing && !status.degraded &&
             std::ranges::all_of(status.pipelines, &cluster::PipelineStatus::open) &&
             status.pipelines.size() >=
                 cluster::MakeLayout(status.plan, {}).value().pipelines.size();
    }));
  }
};

TEST_F(KilledAtEveryToken, OfAPipeline) { Sweep(PlanOf({{{0, 1}}, {{1, 3}}, {{3, 4}}}), 0.85); }
TEST_F(KilledAtEveryToken, OfAPipelineUnderLoad) {
  SweepUnderLoad(PlanOf({{{0, 1}}, {{1, 3}}, {{3, 4}}}));
}
TEST_F(KilledAtEveryToken, BesideOrAmongRanks) { Sweep(PlanOf({{{0, 2}, 2}, {{2, 4}}}), 0.75); }
TEST_F(KilledAtEveryToken, OfPrefillOrDecode) {
  Sweep(PlanOf({{{0, 4}, 1, kPrefill}, {{0, 2}, 1, kDecode}, {{2, 4}, 1, kDecode}}), 0.85);
}

class Elastic : public LayoutTest {
 protected:
  void ExpectStages(size_t stages) {
    EXPECT_TRUE(WaitFor([&](const cluster::ClusterStatus& status) {
      return !status.changing && !status.missing && !status.degraded &&
             status.plan.stages.size() == stages;
    }));
#ifndef MILLRACE_SANITIZED  // there the test requests are few
    EXPECT_FALSE(answers_->all_over()) << "too late to matter";
#endif
  }
};

// 4 -> 3 -> 2 -> 4: one is drained, one is killed, two come.
TEST_F(Elastic, FourThreeTwoFourWorkers) {
  Start(std::nullopt, 4);
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) names.push_back(AddWorker());
  ASSERT_TRUE(WaitFor([](const cluster::ClusterStatus& status) {
    return !status.missing && !status.degraded && !status.changing &&
           status.plan.stages.size() == 4;
  }));
  const auto total = static_cast<int64_t>(ManyRequests().size()) * 12;
  Ask(ManyRequests());
  ASSERT_TRUE(answers_->WaitForTokens(total / 10));
  ASSERT_TRUE(cluster_->host().DrainWorker(names[1]).ok());
  ExpectStages(3);
  ASSERT_TRUE(answers_->WaitForTokens(total * 2 / 10));
  cluster_->KillWorker(names[2]);
  ExpectStages(2);
  ASSERT_TRUE(answers_->WaitForTokens(total * 3 / 10));
  AddWorker();
  AddWorker();
  ExpectStages(4);
  ExpectManyAnswers();
  const cluster::ControllerCounters counters = Counters();
  EXPECT_EQ(counters.workers_lost, 1u);
  EXPECT_EQ(counters.workers_left, 1u) << "the drained one";
  EXPECT_GT(counters.moves, 0u);
  EXPECT_GT(counters.replays, 0u);
#ifndef MILLRACE_SANITIZED
  EXPECT_GT(counters.computed_in_part, 0u)
      << "the new stages have other layer ranges, and two workers kept some layers";
#endif
  RecordProperty("replays", std::to_string(counters.replays));
  RecordProperty("fetched", std::to_string(counters.fetched));
  RecordProperty("computed_in_part", std::to_string(counters.computed_in_part));
}

// Two routes share a stage. Two others replace them; requests are routed again and take their KV
// along.
TEST_F(Elastic, OneBranchingPlanForAnother) {
  const auto two_routes = [](LayerRange first, LayerRange second, LayerRange shared) {
    return PlanOf(
        {{first}, {second}, {shared}},
        {{std::nullopt, 0, 1}, {std::nullopt, 1, 1}, {0, 2, 1}, {1, 2, 1}, {2, std::nullopt, 2}});
  };
  StartWithWorkers(two_routes({0, 1}, {0, 3}, {1, 4}));
  if (HasFatalFailure()) return;
  const auto total = static_cast<int64_t>(ManyRequests().size()) * 12;
  Ask(ManyRequests());
  ASSERT_TRUE(answers_->WaitForTokens(total / 10));
  const Status applied = cluster_->host().ApplyPlan(two_routes({0, 2}, {0, 3}, {2, 4}), {});
  ASSERT_TRUE(applied.ok()) << applied.ToString();
  EXPECT_TRUE(WaitFor([](const cluster::ClusterStatus& status) {
    return !status.changing && !status.missing && !status.degraded && status.plan.epoch == 2;
  }));
  ExpectManyAnswers();
  const cluster::ControllerCounters counters = Counters();
  EXPECT_GT(counters.fetched + counters.moves - counters.moves_failed, 0u);
  EXPECT_EQ(counters.workers_lost, 0u);
}

// From stages of two ranks to one of four and back under the test requests: a worker is for a while
// a rank beside others than before, and first there where it was second.
TEST_F(Elastic, RanksBesideOthers) {
  const Plan pairs = PlanOf({{{0, 2}, 2}, {{2, 4}, 2}}), four = PlanOf({{{0, 4}, 4}});
  StartWithWorkers(pairs);
  if (HasFatalFailure()) return;
  const auto total = static_cast<int64_t>(ManyRequests().size()) * 12;
  Ask(ManyRequests());
  for (int change = 1; change <= 6; ++change) {
    ASSERT_TRUE(answers_->WaitForTokens(total * change / 8));
    const Status applied = cluster_->host().ApplyPlan(change % 2 == 1 ? four : pairs, {});
    ASSERT_TRUE(applied.ok()) << applied.ToString();
    EXPECT_TRUE(WaitFor([&](const cluster::ClusterStatus& status) {
      return !status.changing && !status.missing && !status.degraded &&
             status.plan.epoch == change + 1;
    }));
  }
  ExpectManyAnswers();
  EXPECT_EQ(Counters().workers_lost, 0u);
  EXPECT_EQ(Counters().pipelines_lost, 0u);
}

// Changes between all pairs of plans, at random moments, while the test requests run.
class AnyPlanForAnyOther : public Elastic {
 protected:
  static std::vector<Plan> Plans() {
    const std::vector<PlanEdge> two_routes = {{std::nullopt, 0, 1},
                                              {0, std::nullopt, 1},
                                              {std::nullopt, 1, 1},
                                              {1, 2, 1},
                                              {2, std::nullopt, 1}};
    return {PlanOf({{{0, 4}}}),
            PlanOf({{{0, 1}}, {{1, 3}}, {{3, 4}}}),
            PlanOf({{{0, 2}, 2}, {{2, 4}, 2}}),
            PlanOf({{{0, 4}, 4}}),
            PlanOf({{{0, 1}, 2}, {{1, 4}, 4}}),
            PlanOf({{{0, 4}, 2, kPrefill}, {{0, 3}, 2, kDecode}, {{3, 4}, 1, kDecode}}),
            PlanOf({{{0, 2}, 1, kPrefill}, {{2, 4}, 1, kPrefill}, {{0, 4}, 4, kDecode}}),
            PlanOf({{{0, 4}, 2}, {{0, 1}}, {{1, 4}, 2}}, two_routes)};
  }
  // `kill`: some worker in each round, soon after a change has begun. No more, because a request
  // that loses two without a token in between is taken for the cause.
  void ChangeAtRandom(uint64_t seed, bool kill) {
    const std::vector<Plan> plans = Plans();
    StartWithWorkers(plans.front());
    if (HasFatalFailure()) return;
    for (int i = 1; i < kWorkers; ++i) AddWorker();
    Rng rng(seed);
    uint64_t kills = 0;
    const auto total = static_cast<int64_t>(ManyRequests().size()) * 12;
    for (int round = 0; round < kRounds; ++round) {
      Ask(ManyRequests());
      for (int change = 1; change <= kChanges; ++change) {
        ASSERT_TRUE(answers_->WaitForTokens(total * change / (kChanges + 2)));
        const auto to = static_cast<size_t>(rng.Between(0, std::ssize(plans) - 1));
        SCOPED_TRACE("seed " + std::to_string(seed) + ", round " + std::to_string(round) +
                     ", change " + std::to_string(change) + " to plan " + std::to_string(to));
        const Status applied = cluster_->host().ApplyPlan(plans[to], {});
        ASSERT_TRUE(applied.ok()) << applied.ToString();
        ++epoch_;
        if (kill && change == kChanges / 2) {
          KillAfter(std::chrono::milliseconds(rng.Between(0, 30)), rng);
          ++kills;
        }
        ASSERT_TRUE(WaitFor([&](const cluster::ClusterStatus& status) {
          return !status.changing && !status.missing && !status.degraded &&
                 status.plan.epoch == epoch_;
        }));
      }
      ExpectManyAnswers();
      if (HasFailure()) return;
      ASSERT_EQ(Counters().workers_lost, kills);
      ASSERT_TRUE(kill || Counters().pipelines_lost == 0);
    }
  }

  static constexpr int kWorkers = 6, kRounds = 4, kChanges = 6;

 private:
  void KillAfter(std::chrono::milliseconds pause, Rng& rng) {
    std::this_thread::sleep_for(pause);
    const std::vector<cluster::WorkerStatus> workers = Describe().workers;
    cluster_->KillWorker(
        workers[static_cast<size_t>(rng.Between(0, std::ssize(workers) - 1))].name);
    AddWorker();
  }

  int64_t epoch_ = 1;
};

// Whatever moves at that moment: every request gets its last output, and no thread uses what is
// gone.
TEST_F(AnyPlanForAnyOther, EndsInTheMiddle) {
  const std::vector<Plan> plans = Plans();
  Rng rng(5);
  for (size_t to = 1; to < plans.size(); ++to) {
    StartWithWorkers(plans.front());
    if (HasFatalFailure()) return;
    for (int i = 1; i < kWorkers; ++i) AddWorker();
    Ask(ManyRequests());
    ASSERT_TRUE(answers_->WaitForTokens(static_cast<int64_t>(ManyRequests().size())));
    ASSERT_TRUE(cluster_->host().ApplyPlan(plans[to], {}).ok());
    ASSERT_TRUE(WaitFor([&](const cluster::ClusterStatus& status) {
      return status.moving > 0 || answers_->all_over();
    }));
    std::this_thread::sleep_for(std::chrono::milliseconds(rng.Between(0, 10)));
    cluster_.reset();
    ASSERT_TRUE(answers_->all_over());
  }
}

TEST_F(AnyPlanForAnyOther, NoRequestIsLost) { ChangeAtRandom(1, false); }
TEST_F(AnyPlanForAnyOther, WhileWorkersAreKilled) { ChangeAtRandom(8, true); }

// Under a plan, without a worker to spare: the other pipelines take over what runs, with its KV.
class Drained : public LayoutTest {
 protected:
  // Of the worker that holds these layers in that role.
  void DrainUnderLoad(const Plan& plan, LayerRange layers, StageRole role) {
    StartWithWorkers(plan);
    if (HasFatalFailure()) return;
    const auto total = static_cast<int64_t>(ManyRequests().size()) * 12;
    Ask(ManyRequests());
    ASSERT_TRUE(answers_->WaitForTokens(total / 10));
    const cluster::ClusterStatus before = Describe();
    std::string worker;
    for (const cluster::PipelineStatus& pipeline : before.pipelines) {
      for (size_t hop = 0; hop < pipeline.workers.size(); ++hop) {
        if (pipeline.layers[hop] == layers && pipeline.role == role) worker = pipeline.workers[hop];
      }
    }
    ASSERT_FALSE(worker.empty());
    const Status drained = cluster_->host().DrainWorker(worker);
    ASSERT_TRUE(drained.ok()) << drained.ToString();
    EXPECT_FALSE(cluster_->host().NotReady());
    ASSERT_TRUE(WaitFor([&](const cluster::ClusterStatus& status) {
      return status.workers.size() + 1 == before.workers.size();
    }));
#ifndef MILLRACE_SANITIZED
    EXPECT_FALSE(answers_->all_over()) << "too late to matter";
#endif
    ExpectManyAnswers();
    EXPECT_EQ(Counters().replays, 0u);
    EXPECT_EQ(Counters().pipelines_lost, 0u);
    EXPECT_FALSE(Describe().missing);
    RecordProperty("moves", std::to_string(Counters().moves - before.counters.moves));
    RecordProperty("fetched", std::to_string(Counters().fetched));
  }
};

TEST_F(Drained, AReplica) {
  const std::vector<PlanEdge> two = {{std::nullopt, 0, 1},
                                     {0, std::nullopt, 1},
                                     {std::nullopt, 1, 1},
                                     {1, 2, 1},
                                     {2, std::nullopt, 1}};
  DrainUnderLoad(PlanOf({{{0, 4}}, {{0, 1}}, {{1, 4}}}, two), {1, 4}, StageRole::kBoth);
  EXPECT_GT(Counters().moves + Counters().fetched, 0u);
}

TEST_F(Drained, OneOfTwoThatDecode) {
  DrainUnderLoad(PlanOf({{{0, 4}, 1, kPrefill},
                         {{0, 2}, 1, kDecode},
                         {{2, 4}, 1, kDecode},
                         {{0, 4}, 1, kDecode}}),
                 {2, 4}, kDecode);
  // Moves on their way to the drained worker are given up and begin again.
  EXPECT_LE(Counters().moves_failed, cluster::ControllerOptions::kMovesMax);
}

TEST_F(Drained, OneOfTwoThatComputePrompts) {
  DrainUnderLoad(PlanOf({{{0, 3}, 1, kPrefill},
                         {{3, 4}, 1, kPrefill},
                         {{0, 4}, 1, kPrefill},
                         {{0, 4}, 1, kDecode}}),
                 {0, 3}, kPrefill);
}

}  // namespace
}  // namespace millrace
