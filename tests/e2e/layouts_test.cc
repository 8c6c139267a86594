// Promise 1 over clusters: for every layout, the same test requests to a real model get the
// answers of a plain engine in one process, to the last bit. Workers stay; layouts_faults_test.cc
// takes them away.
#include <map>
#include <set>
#include <thread>

#include "base/rng.h"
#include "layout_harness.h"

namespace millrace {
namespace {

class Layouts : public LayoutTest {
 protected:
  void AskEverything(const Plan& plan) {
    StartWithWorkers(plan);
    if (HasFatalFailure()) return;
    Ask(ManyRequests());
    ExpectManyAnswers();
    EXPECT_EQ(Counters().pipelines_lost, 0u);
    EXPECT_EQ(Counters().replays, 0u);
  }
};

TEST_F(Layouts, TheReferenceIsNotTrivial) {
  const auto answers = AnswersAlone(ManyRequests());
  const std::set<std::string> distinct(answers.begin(), answers.end());
  EXPECT_GT(distinct.size(), answers.size() * 9 / 10);
  int greedy = 0;
  int beams = 0;
  for (const auto& test_request : ManyRequests()) {
    greedy += test_request.params.greedy();
    beams += test_request.params.beam_search;
  }
  EXPECT_EQ(static_cast<size_t>(greedy - beams) * 2, answers.size());
  EXPECT_GT(beams, 0);
}

TEST_F(Layouts, OneProcess) { AskEverything(PlanOf({{{0, 4}}})); }

// vLLM section 4.5 over several workers: what is swapped out of one is swapped out of all.
TEST_F(Layouts, SwappedAtEveryHop) {
  Squeeze(48);
  AskEverything(PlanOf({{{0, 2}, 2}, {{2, 4}}}));
  const sched::SchedulerStats stats = cluster_->host().Stats().scheduler;
  EXPECT_GT(stats.preemptions_swap, 0u);
  EXPECT_EQ(stats.host_blocks_used, 0);
}

TEST_F(Layouts, PipelineOfTwo) { AskEverything(PlanOf({{{0, 2}}, {{2, 4}}})); }
TEST_F(Layouts, PipelineOfThree) { AskEverything(PlanOf({{{0, 2}}, {{2, 3}}, {{3, 4}}})); }

TEST_F(Layouts, TensorParallelOfTwo) { AskEverything(PlanOf({{{0, 4}, 2}})); }
TEST_F(Layouts, TensorParallelOfFour) { AskEverything(PlanOf({{{0, 4}, 4}})); }
// Four KV heads over eight ranks: each is held by two.
TEST_F(Layouts, TensorParallelOfEightRepeatsKvHeads) { AskEverything(PlanOf({{{0, 4}, 8}})); }

TEST_F(Layouts, UnevenFewFirst) { AskEverything(PlanOf({{{0, 1}}, {{1, 4}}})); }
TEST_F(Layouts, UnevenFewLast) { AskEverything(PlanOf({{{0, 3}}, {{3, 4}}})); }
TEST_F(Layouts, UnevenOfThree) { AskEverything(PlanOf({{{0, 1}}, {{1, 3}}, {{3, 4}}})); }
TEST_F(Layouts, UnevenWithRanks) { AskEverything(PlanOf({{{0, 1}, 2}, {{1, 3}}, {{3, 4}, 4}})); }

// Helix section 5: two routes meet at a stage and run different parts of its layers.
class SharedStage : public Layouts {
 protected:
  void AskThroughSharedStage(int tensor_parallel) {
    const Plan plan = PlanOf(
        {{{0, 1}}, {{0, 3}}, {{1, 4}, tensor_parallel}},
        {{std::nullopt, 0, 1}, {std::nullopt, 1, 1}, {0, 2, 1}, {1, 2, 1}, {2, std::nullopt, 2}});
    StartWithWorkers(plan);
    if (HasFatalFailure()) return;
    Ask(ManyRequests());
    ExpectManyAnswers();
    std::map<std::pair<int, int>, size_t> parts;  // of the shared stage, by route
    for (const cluster::PipelineStatus& pipeline : Describe().pipelines) {
      ASSERT_EQ(pipeline.layers.size(), 2u);
      ++parts[{pipeline.layers[1].begin, pipeline.layers[1].end}];
      const auto counters = cluster_->worker(pipeline.workers[0])->counters();
      EXPECT_GT(counters.batches, 0u) << "no batch took this pipeline";
    }
    EXPECT_EQ(parts, (decltype(parts){{{1, 4}, 1}, {{3, 4}, 1}}));
    AskUntilMerged();
    EXPECT_EQ(Counters().replays, 0u);
  }

 private:
  // Steps of both routes in one batch: small ones, since full ones have no room for another.
  void AskUntilMerged() {
    static const std::vector<std::string> expected = AnswersAlone(FewStreams());
    const cluster::WorkerHost* shared = cluster_->worker(Describe().pipelines[0].workers[1]);
    const auto merged = [&] { return shared->counters().parts - shared->counters().batches; };
    for (int round = 0; round < 100 && merged() == 0; ++round) {
      Ask(FewStreams());
      ExpectAnswers(expected);
    }
    EXPECT_GT(merged(), 0u);
  }
};

TEST_F(SharedStage, OfOneWorker) { AskThroughSharedStage(1); }
TEST_F(SharedStage, OfTwoRanks) { AskThroughSharedStage(2); }

// DistServe section 4.3: every request that decodes takes the KV of its prompt along. Beam searches
// are computed where they decode, from the prompt on.
class PrefillAndDecodeApart : public Layouts {
 protected:
  void AskApart(const std::vector<StageSpec>& stages) {
    AskEverything(PlanOf(stages));
    uint64_t handed_over = 0;
    const auto ones = answers_->ones();
    for (size_t i = 0; i < ones.size(); ++i) {
      if (ManyRequests()[i].params.beam_search) continue;
      handed_over += std::ranges::any_of(
          ones[i].sequences, [](const auto& sequence) { return sequence.tokens.size() > 1; });
    }
    EXPECT_GT(handed_over, ones.size() / 2);
    EXPECT_EQ(Counters().moves, handed_over);
    EXPECT_EQ(Counters().moves_failed, 0u);
    EXPECT_GT(Counters().moved_bytes, 0u);
  }
};

TEST_F(PrefillAndDecodeApart, RanksToOne) {
  AskApart({{{0, 4}, 2, kPrefill}, {{0, 4}, 1, kDecode}});
}
TEST_F(PrefillAndDecodeApart, OneToRanksOfAnotherSplit) {
  AskApart({{{0, 4}, 1, kPrefill}, {{0, 1}, 2, kDecode}, {{1, 4}, 4, kDecode}});
}
TEST_F(PrefillAndDecodeApart, MoreRanksToFewerInOtherStages) {
  AskApart(
      {{{0, 3}, 4, kPrefill}, {{3, 4}, 1, kPrefill}, {{0, 2}, 1, kDecode}, {{2, 4}, 2, kDecode}});
}

// Running requests move to the other pipeline again and again, with their KV.
class Migrated : public Layouts {
 protected:
  // `stages` make two pipelines that decode; `a` and `b` are stages of either.
  void AskAndMigrate(const Plan& plan, size_t a, size_t b) {
    StartWithWorkers(plan);
    if (HasFatalFailure()) return;
    const uint64_t wanted = ManyRequests().size() / 4;
    uint64_t arrived = 0;
    for (int round = 0; round < kRoundsMax && arrived <= wanted; ++round) {
      Ask(ManyRequests());
      MigrateWhileTheyRun(plan, a, b);
      ExpectManyAnswers();
      if (HasFailure()) return;
      arrived = Counters().moves - Counters().moves_failed;
    }
    const cluster::ControllerCounters counters = Counters();
    EXPECT_GT(arrived, wanted);
    EXPECT_GT(counters.moved_bytes, 0u);
    EXPECT_EQ(counters.pipelines_lost, 0u);
    RecordProperty("moves", std::to_string(counters.moves));
    RecordProperty("moves_failed", std::to_string(counters.moves_failed));
  }

 private:
  static constexpr int kMovesAtOnce = 20;  // tried: most of them wait, or have ended
  // Beside others' work the answers may be there before many requests have moved.
  static constexpr int kRoundsMax = 20;

  void MigrateWhileTheyRun(const Plan& plan, size_t a, size_t b) {
    Rng rng(3);
    while (!answers_->all_over()) {
      const std::string targets[] = {WorkerOf(plan.stages[a].layers, plan, a),
                                     WorkerOf(plan.stages[b].layers, plan, b)};
      for (int i = 0; i < kMovesAtOnce; ++i) {
        const RequestId id = ids_[static_cast<size_t>(rng.Between(0, std::ssize(ids_) - 1))];
        for (const std::string& target : targets) {
          if (!target.empty() && cluster_->host().Migrate(id, target).ok()) break;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  // Of the plan's stage `index`, by a pipeline through it.
  std::string WorkerOf(LayerRange layers, const Plan& plan, size_t index) {
    for (const cluster::PipelineStatus& pipeline : Describe().pipelines) {
      if (pipeline.role != plan.stages[index].role) continue;
      for (size_t hop = 0; hop < pipeline.layers.size(); ++hop) {
        if (pipeline.layers[hop] == layers) return pipeline.workers[hop];
      }
    }
    return {};
  }
};

TEST_F(Migrated, BetweenRoutes) {
  AskAndMigrate(PlanOf({{{0, 4}, 2}, {{0, 1}}, {{1, 4}}}, {{std::nullopt, 0, 1},
                                                           {0, std::nullopt, 1},
                                                           {std::nullopt, 1, 1},
                                                           {1, 2, 1},
                                                           {2, std::nullopt, 1}}),
                0, 2);
}
TEST_F(Migrated, BetweenDecodingWays) {
  AskAndMigrate(PlanOf({{{0, 4}, 2, kPrefill},
                        {{0, 3}, 1, kDecode},
                        {{3, 4}, 1, kDecode},
                        {{0, 4}, 2, kDecode}}),
                1, 3);
}

}  // namespace
}  // namespace millrace
