// A cell and its workers in one process, over a model of hashes: whatever happens to the workers,
// every answer is the one the definition gives.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/rng.h"
#include "cluster/local_cluster.h"
#include "cluster/testing/stream_answers.h"
#include "engine/hash_stage.h"

namespace millrace::cluster {
namespace {

const engine::HashModel kModel{.num_layers = 6, .vocab_size = 200, .heads = 2, .seed = 5};
constexpr TokenId kEos = 7;

class CellTest : public testing::Test {
 protected:
  CellOptions Options(int stages) {
    CellOptions options;
    ControllerOptions& c = options.controller;
    c.term = Term(1);
    c.model = "hashes";
    c.num_layers = kModel.num_layers;
    c.stages = stages;
    c.scheduler.block_size = 4;
    c.scheduler.max_num_seqs = 8;
    c.scheduler.max_num_batched_tokens = 32;
    c.scheduler.max_model_len = 96;
    c.scheduler.eos_token_ids = {kEos};
    c.silent_limit = Duration::Seconds(2);
    c.replace_limit = Duration::Seconds(0.2);
    options.seed = 3;
    return options;
  }

  void StartCluster(CellOptions options) {
    auto cluster = LocalCluster::Start(std::move(options), clock_);
    ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
    cluster_ = std::move(*cluster);
  }

  void AddWorker(const std::string& name, int kv_blocks = 400) {
    Join join;
    join.name = name;
    cluster_->AddWorker(std::move(join),
                        [kv_blocks](const LoadShard& load, const auto&, const ShardProgressFn&) {
                          LoadedShard loaded;
                          loaded.stage = std::make_shared<engine::HashStage>(kModel, load.layers);
                          loaded.facts.weight_bytes = load.layers.size();
                          loaded.facts.kv_bytes_per_token_layer = 64;
                          loaded.facts.kv_bytes = int64_t{kv_blocks} * 4 * load.layers.size() * 64;
                          return loaded;
                        });
  }

  void Ask(int count, int prompt_tokens, int max_tokens) {
    Rng rng(77);
    for (int i = 0; i < count; ++i) {
      engine::EngineRequest request;
      const int length = prompt_tokens + i % 5;
      for (int t = 0; t < length; ++t)
        request.prompt.push_back(static_cast<TokenId>(rng.Between(0, 199)));
      request.params.max_tokens = max_tokens;
      request.params.n = i % 7 == 3 ? 2 : 1;
      request.params.seed = 1000 + i;
      request.params.ignore_eos = i % 3 == 0 || max_tokens > 1000;
      auto sink = answers_.Sink(asked_.size(), request.params.n);
      asked_.push_back(request);
      const auto id = cluster_->cell().Submit(request, std::move(sink));
      ASSERT_TRUE(id.ok()) << id.status().ToString();
      ids_.push_back(*id);
    }
  }

  void ExpectReference() {
    ASSERT_TRUE(answers_.WaitForAll());
    const auto ones = answers_.ones();
    for (size_t i = 0; i < asked_.size(); ++i) {
      EXPECT_TRUE(ones[i].error.ok()) << ones[i].error.ToString();
      for (int s = 0; s < asked_[i].params.n; ++s) {
        const std::vector<TokenId> eos =
            asked_[i].params.ignore_eos ? std::vector<TokenId>() : std::vector<TokenId>{kEos};
        const auto expected = engine::HashReference(kModel, asked_[i].prompt, asked_[i].params,
                                                    SequenceSeed(*asked_[i].params.seed, s),
                                                    *asked_[i].params.max_tokens, eos);
        EXPECT_EQ(ones[i].sequences[static_cast<size_t>(s)].tokens, expected) << "request " << i;
      }
    }
    // A transfer for a request that has ended holds its blocks until it ends too.
    sched::SchedulerStats stats;
    for (int i = 0; i < 1000; ++i) {
      stats = cluster_->cell().Stats().scheduler;
      if (stats.blocks_free == stats.blocks_total) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.blocks_free, stats.blocks_total);
  }

  SteadyClock clock_;
  StreamAnswers answers_;
  std::vector<engine::EngineRequest> asked_;
  std::vector<RequestId> ids_;
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(CellTest, AnswersThroughThreeStages) {
  StartCluster(Options(3));
  for (const char* name : {"a", "b", "c"}) AddWorker(name);
  Ask(20, 9, 20);
  ExpectReference();
}

TEST_F(CellTest, RequestsWaitForWorkers) {
  StartCluster(Options(2));
  EXPECT_EQ(cluster_->cell().NotReady(), "No worker has joined yet.");
  Ask(3, 5, 5);
  AddWorker("a");
  AddWorker("b");
  ExpectReference();
  EXPECT_FALSE(cluster_->cell().NotReady());
}

TEST_F(CellTest, DrainWaitsForTheLastNewsToBeTold) {
  StartCluster(Options(1));
  AddWorker("a");
  engine::EngineRequest request;
  request.prompt = {1};
  request.params.max_tokens = 1;
  std::promise<void> being_told;
  std::atomic<bool> told = false;
  const auto id = cluster_->cell().Submit(request, [&](RequestOutput&& output) {
    ASSERT_TRUE(output.times.has_value());
    being_told.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    told = true;
  });
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  being_told.get_future().wait();
  EXPECT_TRUE(cluster_->cell().Drain(Duration::Seconds(60)));
  EXPECT_TRUE(told);
}

// Architecture promise 2: a token once streamed is never lost, repeated or changed.
TEST_F(CellTest, AKilledWorkerCostsNoToken) {
  CellOptions options = Options(3);
  options.controller.scheduler.max_model_len = 640;  // long enough to be killed twice under way
  options.controller.deaths_max = 3;  // whoever gets no token in between is no poison
  StartCluster(std::move(options));
  for (const char* name : {"a", "b", "c"}) AddWorker(name);
  Ask(12, 9, 600);
  ASSERT_TRUE(answers_.WaitForTokens(60));
  cluster_->KillWorker("b");
  AddWorker("b");
  ASSERT_TRUE(answers_.WaitForTokens(120));
  // `a` and `c` hold their layers still.
  for (int i = 0; i < 2000 && cluster_->cell().Describe().counters.computed_in_part == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(cluster_->cell().Describe().counters.computed_in_part, 1u);
  cluster_->KillWorker("c");  // and nobody comes: its layers go to the others
  ExpectReference();
  EXPECT_GE(cluster_->cell().Describe().counters.lanes_lost, 1u);
}

TEST_F(CellTest, AHungWorkerIsGivenUpAndWhatItSaysLateIsIgnored) {
  CellOptions options = Options(2);
  options.controller.silent_limit = Duration::Seconds(0.5);
  options.controller.scheduler.max_model_len = 640;  // long enough to be under way still
  StartCluster(std::move(options));
  AddWorker("a");
  AddWorker("b");
  Ask(6, 9, 600);
  ASSERT_TRUE(answers_.WaitForTokens(30));
  cluster_->HangWorker("b", true);
  const auto given_up = [&] { return cluster_->cell().Describe().counters.workers_lost > 0; };
  for (int i = 0; i < 6000 && !given_up(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(given_up());
  cluster_->HangWorker("b", false);
  ExpectReference();
}

// DistServe section 4.3: prompts on one stage, decodes on the others, KV pulled in between.
TEST_F(CellTest, PrefillAndDecodeApart) {
  CellOptions options = Options(1);
  Plan plan;
  plan.num_layers = kModel.num_layers;
  plan.stages = {{.layers = {0, 6}, .role = StageRole::kPrefill},
                 {.layers = {0, 2}, .role = StageRole::kDecode},
                 {.layers = {2, 6}, .role = StageRole::kDecode}};
  options.controller.plan = plan;
  StartCluster(std::move(options));
  for (const char* name : {"p", "d1", "d2"}) AddWorker(name);
  Ask(3, 13, 5);  // opens the decoding lane; until it is open requests go on from their tokens
  ExpectReference();
  Ask(20, 13, 20);
  ExpectReference();
  const auto counters = cluster_->cell().Describe().counters;
  EXPECT_GE(counters.moves, 10u);
  EXPECT_EQ(counters.moves_failed, 0u);
  EXPECT_GT(counters.moved_bytes, 0u);
}

// 4 -> 3 -> 2 -> 4 workers while requests run.
TEST_F(CellTest, LayersFollowTheNumberOfWorkers) {
  StartCluster(Options(4));
  for (const char* name : {"a", "b", "c", "d"}) AddWorker(name);
  Ask(10, 9, 80);
  ASSERT_TRUE(answers_.WaitForTokens(40));
  ASSERT_TRUE(cluster_->cell().DrainWorker("d").ok());
  ASSERT_TRUE(answers_.WaitForTokens(150));
  ASSERT_TRUE(cluster_->cell().DrainWorker("c").ok());
  ASSERT_TRUE(answers_.WaitForTokens(250));
  AddWorker("e");
  AddWorker("f");
  ExpectReference();
  EXPECT_GE(cluster_->cell().Describe().counters.layouts, 3u);
}

TEST_F(CellTest, AbortEndsARequestAtOnceWhateverItWaitsFor) {
  CellOptions options = Options(2);
  options.controller.scheduler.max_model_len = 1500;  // not over before it is aborted
  StartCluster(std::move(options));
  Ask(2, 5, 1400);
  cluster_->cell().Abort(ids_[0]);  // no worker has come yet
  AddWorker("a");
  AddWorker("b");
  ASSERT_TRUE(answers_.WaitForTokens(3));
  cluster_->cell().Abort(ids_[1]);
  ASSERT_TRUE(answers_.WaitForAll());
  for (const auto& one : answers_.ones()) EXPECT_EQ(one.sequences[0].finish, FinishReason::kAbort);
}

TEST_F(CellTest, AWorkerWithOtherWeightsIsRefused) {
  CellOptions options = Options(1);
  options.controller.identity.model_fingerprint = "right";
  StartCluster(std::move(options));
  Join join;
  join.name = "stranger";
  join.identity.model_fingerprint = "wrong";
  cluster_->AddWorker(std::move(join),
                      [](const LoadShard&, const auto&, const auto&) { return LoadedShard(); });
  for (int i = 0; i < 1000 && cluster_->cell().Describe().counters.joins_refused == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const auto status = cluster_->cell().Describe();
  EXPECT_EQ(status.counters.joins_refused, 1u);
  EXPECT_TRUE(status.workers.empty());
}

}  // namespace
}  // namespace millrace::cluster
