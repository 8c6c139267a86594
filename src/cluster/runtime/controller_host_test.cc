// A controller and its workers in one process, over a hash model. Whatever happens to the workers,
// every answer equals the reference.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "base/rng.h"
#include "cluster/runtime/local_cluster.h"
#include "cluster/runtime/testing/stream_answers.h"
#include "stage/testing/hash_stage.h"

namespace millrace::cluster {
namespace {

const stage::HashModel kModel{.num_layers = 6, .vocab_size = 200, .heads = 2, .seed = 5};
constexpr TokenId kEos = 7;

class ControllerHostTest : public testing::Test {
 protected:
  ControllerHostOptions Options(int stages) {
    ControllerHostOptions options;
    ControllerOptions& c = options.controller;
    c.term = Term(1);
    c.model = "hashes";
    c.num_layers = kModel.num_layers;
    c.shape.stages = stages;
    c.scheduler.block_size = 4;
    c.scheduler.max_num_seqs = 8;
    c.scheduler.max_num_batched_tokens = 32;
    c.scheduler.max_model_len = 96;
    c.short_prompt_tokens = 0;  // also short prompts are handed over
    c.scheduler.eos_token_ids = {kEos};
    c.silent_limit = Duration::Seconds(2);
    c.replace_limit = Duration::Seconds(0.2);
    options.seed = 3;
    return options;
  }

  void StartCluster(ControllerHostOptions options) {
    auto cluster = LocalCluster::Start(std::move(options), clock_);
    ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
    cluster_ = std::move(*cluster);
  }

  // `layers_max`: a load of more layers fails.
  void AddWorker(const std::string& name, int kv_blocks = 400, int layers_max = 99) {
    Join join;
    join.name = name;
    cluster_->AddWorker(std::move(join), [kv_blocks, layers_max](const LoadShard& load, const auto&,
                                                                 const ShardProgressFn&) {
      LoadedShard loaded;
      if (load.layers.size() > layers_max) {
        loaded.facts.status = ResourceExhausted("no memory for the weights");
        return loaded;
      }
      loaded.stage = std::make_shared<stage::HashStage>(kModel, load.layers);
      loaded.facts.weight_bytes = load.layers.size();
      loaded.facts.kv_bytes_per_token_layer = 64;
      loaded.facts.kv_bytes = int64_t{kv_blocks} * 4 * load.layers.size() * 64;
      return loaded;
    });
  }

  void Ask(int count, int prompt_tokens, int max_tokens) {
    Rng rng(77);
    for (int i = 0; i < count; ++i) {
      GenerationRequest request;
      const int length = prompt_tokens + i % 5;
      for (int t = 0; t < length; ++t)
        request.prompt.push_back(static_cast<TokenId>(rng.Between(0, 199)));
      request.params.max_tokens = max_tokens;
      request.params.n = i % 7 == 3 ? 2 : 1;
      request.params.seed = 1000 + i;
      request.params.ignore_eos = i % 3 == 0 || max_tokens > 1000;
      auto sink = answers_.Sink(asked_.size(), request.params.n);
      asked_.push_back(request);
      const auto id = cluster_->host().Submit(request, std::move(sink));
      ASSERT_TRUE(id.ok()) << id.status().ToString();
      ids_.push_back(*id);
    }
  }

  bool WaitFor(const std::function<bool(const ClusterStatus&)>& wanted) {
    for (int i = 0; i < 2000; ++i) {
      if (wanted(cluster_->host().Describe())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  void ExpectReference() {
    ASSERT_TRUE(answers_.WaitForAll());
    const auto ones = answers_.ones();
    for (size_t i = 0; i < asked_.size(); ++i) {
      EXPECT_TRUE(ones[i].error.ok()) << ones[i].error.ToString();
      for (int s = 0; s < asked_[i].params.n; ++s) {
        const std::vector<TokenId> eos =
            asked_[i].params.ignore_eos ? std::vector<TokenId>() : std::vector<TokenId>{kEos};
        const auto expected = stage::HashReference(kModel, asked_[i].prompt, asked_[i].params,
                                                   SequenceSeed(*asked_[i].params.seed, s),
                                                   *asked_[i].params.max_tokens, eos);
        EXPECT_EQ(ones[i].sequences[static_cast<size_t>(s)].tokens, expected) << "request " << i;
      }
    }
    // A transfer for a request that has ended holds its blocks until the transfer ends too.
    sched::SchedulerStats stats;
    for (int i = 0; i < 1000; ++i) {
      stats = cluster_->host().Stats().scheduler;
      if (stats.blocks_free == stats.blocks_total) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.blocks_free, stats.blocks_total);
  }

  SteadyClock clock_;
  StreamAnswers answers_;
  std::vector<GenerationRequest> asked_;
  std::vector<RequestId> ids_;
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(ControllerHostTest, AnswersThroughThreeStages) {
  StartCluster(Options(3));
  for (const char* name : {"a", "b", "c"}) AddWorker(name);
  Ask(20, 9, 20);
  ExpectReference();
}

TEST_F(ControllerHostTest, RequestsWaitForWorkers) {
  StartCluster(Options(2));
  EXPECT_EQ(cluster_->host().NotReady(), "No worker has joined yet.");
  Ask(3, 5, 5);
  AddWorker("a");
  AddWorker("b");
  ExpectReference();
  EXPECT_FALSE(cluster_->host().NotReady());
}

TEST_F(ControllerHostTest, DrainWaitsForTheLastOutputToBeDelivered) {
  StartCluster(Options(1));
  AddWorker("a");
  GenerationRequest request;
  request.prompt = {1};
  request.params.max_tokens = 1;
  std::promise<void> being_delivered;
  std::atomic<bool> delivered = false;
  const auto id = cluster_->host().Submit(request, [&](RequestOutput&& output) {
    ASSERT_TRUE(output.times.has_value());
    being_delivered.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    delivered = true;
  });
  ASSERT_TRUE(id.ok()) << id.status().ToString();
  being_delivered.get_future().wait();
  EXPECT_TRUE(cluster_->host().Drain(Duration::Seconds(60)));
  EXPECT_TRUE(delivered);
}

// Architecture promise 2: a token once streamed is never lost, repeated or changed.
TEST_F(ControllerHostTest, AKilledWorkerCostsNoToken) {
  ControllerHostOptions options = Options(3);
  options.controller.scheduler.max_model_len = 640;  // still running at the second kill
  options.controller.deaths_max = 3;  // requests may get no token between the two kills
  StartCluster(std::move(options));
  for (const char* name : {"a", "b", "c"}) AddWorker(name);
  Ask(12, 9, 600);
  ASSERT_TRUE(answers_.WaitForTokens(60));
  cluster_->KillWorker("b");
  AddWorker("b");
  ASSERT_TRUE(answers_.WaitForTokens(120));
  // `a` and `c` still hold their layers.
  for (int i = 0; i < 2000 && cluster_->host().Describe().counters.computed_in_part == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GE(cluster_->host().Describe().counters.computed_in_part, 1u);
  cluster_->KillWorker("c");  // not replaced: its layers go to the others
  ExpectReference();
  EXPECT_GE(cluster_->host().Describe().counters.pipelines_lost, 1u);
}

TEST_F(ControllerHostTest, AHungWorkerIsGivenUpAndItsLateMessagesAreIgnored) {
  ControllerHostOptions options = Options(2);
  options.controller.silent_limit = Duration::Seconds(0.5);
  options.controller.scheduler.max_model_len = 640;  // still running when the worker is given up
  StartCluster(std::move(options));
  AddWorker("a");
  AddWorker("b");
  Ask(6, 9, 600);
  ASSERT_TRUE(answers_.WaitForTokens(30));
  cluster_->HangWorker("b", true);
  const auto given_up = [&] { return cluster_->host().Describe().counters.workers_lost > 0; };
  for (int i = 0; i < 6000 && !given_up(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_TRUE(given_up());
  cluster_->HangWorker("b", false);
  ExpectReference();
}

// DistServe section 4.3: prompts on one stage, decodes on the others, KV pulled in between.
TEST_F(ControllerHostTest, PrefillAndDecodeApart) {
  ControllerHostOptions options = Options(1);
  Plan plan;
  plan.num_layers = kModel.num_layers;
  plan.stages = {{.layers = {0, 6}, .role = StageRole::kPrefill},
                 {.layers = {0, 2}, .role = StageRole::kDecode},
                 {.layers = {2, 6}, .role = StageRole::kDecode}};
  options.controller.plan = plan;
  StartCluster(std::move(options));
  for (const char* name : {"p", "d1", "d2"}) AddWorker(name);
  Ask(3, 13, 5);  // until the decode pipeline is open, requests are computed again from tokens
  ExpectReference();
  Ask(20, 13, 20);
  ExpectReference();
  const auto counters = cluster_->host().Describe().counters;
  EXPECT_GE(counters.moves, 10u);
  EXPECT_EQ(counters.moves_failed, 0u);
  EXPECT_GT(counters.moved_bytes, 0u);
}

// Scales 4 -> 3 -> 2 -> 4 workers while requests run.
TEST_F(ControllerHostTest, LayersFollowTheNumberOfWorkers) {
  StartCluster(Options(4));
  for (const char* name : {"a", "b", "c", "d"}) AddWorker(name);
  Ask(10, 9, 80);
  ASSERT_TRUE(answers_.WaitForTokens(40));
  ASSERT_TRUE(cluster_->host().DrainWorker("d").ok());
  ASSERT_TRUE(answers_.WaitForTokens(150));
  ASSERT_TRUE(cluster_->host().DrainWorker("c").ok());
  ASSERT_TRUE(answers_.WaitForTokens(250));
  AddWorker("e");
  AddWorker("f");
  ExpectReference();
  EXPECT_GE(cluster_->host().Describe().counters.layouts, 3u);
}

// The plan in force continues to serve, and the controller reports that the other was given up.
TEST_F(ControllerHostTest, APlanThatCannotBeLoadedIsGivenUp) {
  ControllerHostOptions options = Options(1);
  options.controller.plan = EvenPlan("hashes", 6, 2, 1);
  StartCluster(std::move(options));
  AddWorker("a", 400, 4);
  AddWorker("b", 400, 4);
  ASSERT_TRUE(WaitFor([](const ClusterStatus& status) { return !status.missing; }));
  std::mutex mutex;
  std::vector<std::pair<int64_t, bool>> settled;
  cluster_->host().OnPlanSettled([&](int64_t epoch, bool in_force) {
    const std::lock_guard lock(mutex);
    settled.emplace_back(epoch, in_force);
  });
  Ask(10, 9, 80);
  ASSERT_TRUE(answers_.WaitForTokens(40));
  int64_t epoch = 0;
  ASSERT_TRUE(cluster_->host().ApplyPlan(EvenPlan("hashes", 6, 1, 1), {}, &epoch).ok());
  EXPECT_EQ(epoch, 2);
  EXPECT_TRUE(WaitFor([](const ClusterStatus& status) { return status.given_up.has_value(); }));
  ExpectReference();
  const ClusterStatus status = cluster_->host().Describe();
  EXPECT_EQ(status.epoch, 1);
  EXPECT_EQ(status.missing, std::nullopt);
  EXPECT_FALSE(status.changing);
  EXPECT_EQ(status.counters.pipelines_lost, 0u);
  cluster_->host().OnPlanSettled(nullptr);
  EXPECT_EQ(settled, (std::vector<std::pair<int64_t, bool>>{{2, false}}));
}

// SIGTERM to one of two replicas.
TEST_F(ControllerHostTest, RequestsOfADrainedReplicaMoveWithTheirKv) {
  ControllerHostOptions options = Options(1);
  Plan plan{.num_layers = kModel.num_layers};
  for (int i = 0; i < 2; ++i) {
    plan.stages.push_back({.layers = {0, kModel.num_layers}});
    plan.edges.push_back({std::nullopt, i, 1});
    plan.edges.push_back({i, std::nullopt, 1});
  }
  options.controller.plan = plan;
  options.controller.scheduler.max_model_len = 640;  // still running when the worker drains
  StartCluster(std::move(options));
  AddWorker("a");
  AddWorker("b");
  ASSERT_TRUE(WaitFor([](const ClusterStatus& s) { return !s.missing && !s.degraded; }));
  Ask(8, 9, 400);
  ASSERT_TRUE(answers_.WaitForTokens(80));
  ASSERT_TRUE(cluster_->host().DrainWorker("b").ok());
  EXPECT_FALSE(cluster_->host().NotReady());
  EXPECT_TRUE(WaitFor([](const ClusterStatus& s) { return s.workers.size() == 1; }));
  ExpectReference();
  const ControllerCounters counters = cluster_->host().Describe().counters;
  EXPECT_EQ(counters.replays, 0u);
  EXPECT_EQ(counters.pipelines_lost, 0u);
}

TEST_F(ControllerHostTest, AbortEndsWaitingAndRunningRequests) {
  ControllerHostOptions options = Options(2);
  options.controller.scheduler.max_model_len = 1500;  // still running when it is aborted
  StartCluster(std::move(options));
  Ask(2, 5, 1400);
  cluster_->host().Abort(ids_[0]);  // no worker has joined yet
  AddWorker("a");
  AddWorker("b");
  ASSERT_TRUE(answers_.WaitForTokens(3));
  cluster_->host().Abort(ids_[1]);
  ASSERT_TRUE(answers_.WaitForAll());
  for (const auto& one : answers_.ones()) EXPECT_EQ(one.sequences[0].finish, FinishReason::kAbort);
}

// Its term may be that of a leader that was replaced.
TEST_F(ControllerHostTest, NoWorkerJoinsWhileItDoesNotLead) {
  std::atomic<bool> leads = false;
  ControllerHostOptions options = Options(1);
  options.leads = [&leads] { return leads.load(); };
  std::atomic<int> refused = 0, welcomed = 0;
  ControllerLinks links;
  links.send = [&](ConnectionId, const ToWorker& message) {
    const auto* no = std::get_if<Refused>(&message);
    refused += no != nullptr && no->retry ? 1 : 0;
    welcomed += std::holds_alternative<Welcome>(message) ? 1 : 0;
  };
  links.disconnect = [](ConnectionId, const std::string&) {};
  auto host = ControllerHost::Start(std::move(options), std::move(links), clock_);
  ASSERT_TRUE(host.ok());
  Join join;
  join.name = "a";
  (*host)->Receive(ConnectionId(1), join);
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(welcomed, 0);
  leads = true;
  (*host)->Receive(ConnectionId(2), join);
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(welcomed, 1);
}

TEST_F(ControllerHostTest, AWorkerWithOtherWeightsIsRefused) {
  ControllerHostOptions options = Options(1);
  options.controller.identity.model_fingerprint = "right";
  StartCluster(std::move(options));
  Join join;
  join.name = "stranger";
  join.identity.model_fingerprint = "wrong";
  cluster_->AddWorker(std::move(join),
                      [](const LoadShard&, const auto&, const auto&) { return LoadedShard(); });
  for (int i = 0; i < 1000 && cluster_->host().Describe().counters.joins_refused == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const auto status = cluster_->host().Describe();
  EXPECT_EQ(status.counters.joins_refused, 1u);
  EXPECT_TRUE(status.workers.empty());
}

}  // namespace
}  // namespace millrace::cluster
