// A controller and workers over real loopback sockets, with the hash model.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "base/rng.h"
#include "cluster/runtime/controller_process.h"
#include "cluster/runtime/testing/net_worker.h"

namespace millrace::cluster {
namespace {

constexpr std::chrono::seconds kLimit{60};

class NetTest : public ::testing::Test {
 protected:
  void StartServer(int stages, std::optional<Plan> plan = {}, bool probes = false) {
    ControllerHostOptions options;
    ControllerOptions& c = options.controller;
    c.term = Term(1);
    c.model = "hashes";
    c.num_layers = testing::kModel.num_layers;
    c.shape.stages = stages;
    c.plan = std::move(plan);
    c.scheduler.block_size = 4;
    c.scheduler.max_num_seqs = 8;
    c.scheduler.max_num_batched_tokens = 32;
    c.scheduler.max_model_len = 400;
    c.short_prompt_tokens = 0;  // also short prompts are handed over
    if (probes) c.link_probes = LinkProbeOptions{.quiet = Duration()};
    ControlServerOptions server;
    server.security.token = testing::kToken;
    auto started = ControllerProcess::Start(std::move(options), std::move(server), clock_);
    ASSERT_TRUE(started.ok()) << started.status().ToString();
    server_ = std::move(*started);
  }
  void StartWorker(const std::string& name) {
    workers_[name] =
        std::make_unique<testing::Worker>(testing::WorkerOptions(name, server_->port()), clock_);
  }
  void Ask(int count, int max_tokens) {
    Rng rng(7);
    for (int i = 0; i < count; ++i) {
      GenerationRequest request;
      for (int t = 0; t < 6 + i % 5; ++t) {
        request.prompt.push_back(static_cast<TokenId>(rng.Between(0, 199)));
      }
      request.params.max_tokens = max_tokens;
      request.params.seed = 100 + i;
      request.params.ignore_eos = true;
      asked_.push_back(request);
      {
        std::lock_guard lock(mutex_);
        answers_.emplace_back();
      }
      const size_t slot = asked_.size() - 1;
      const auto id = server_->host().Submit(request, [this, slot](RequestOutput&& output) {
        std::lock_guard lock(mutex_);
        for (TokenId token : output.tokens) answers_[slot].push_back(token);
        delivered_ += std::ssize(output.tokens);
        if (!output.error.ok()) error_ = output.error;
        over_ += output.times.has_value();
        changed_.notify_all();
      });
      ASSERT_TRUE(id.ok()) << id.status().ToString();
      ids_.push_back(*id);
    }
  }
  bool WaitForTokens(int64_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kLimit, [&] { return delivered_ >= count; });
  }
  void ExpectReference() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kLimit, [&] { return over_ == std::ssize(asked_); }));
    EXPECT_TRUE(error_.ok()) << error_.ToString();
    for (size_t i = 0; i < asked_.size(); ++i) {
      EXPECT_EQ(answers_[i],
                stage::HashReference(testing::kModel, asked_[i].prompt, asked_[i].params,
                                     SequenceSeed(*asked_[i].params.seed, 0),
                                     *asked_[i].params.max_tokens))
          << "request " << i;
    }
  }

  SteadyClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<TokenId>> answers_;
  int64_t delivered_ = 0, over_ = 0;
  Status error_;
  std::vector<GenerationRequest> asked_;
  std::vector<RequestId> ids_;
  std::unique_ptr<ControllerProcess> server_;  // declared first, so destroyed after the workers
  std::map<std::string, std::unique_ptr<testing::Worker>> workers_;
};

TEST_F(NetTest, AnswersThroughThreeWorkers) {
  StartServer(3);
  for (const char* name : {"a", "b", "c"}) StartWorker(name);
  Ask(10, 20);
  ExpectReference();
}

TEST_F(NetTest, NoTokenIsLostWithAWorker) {
  StartServer(2);
  StartWorker("a");
  StartWorker("b");
  Ask(8, 60);
  ASSERT_TRUE(WaitForTokens(50));
  workers_.erase("b");
  StartWorker("b");
  ASSERT_TRUE(WaitForTokens(200));
  workers_.erase("a");
  StartWorker("a");
  ExpectReference();
}

// DistServe section 4.3.
TEST_F(NetTest, KvIsPulledFromPrefillToDecode) {
  Plan plan;
  plan.num_layers = testing::kModel.num_layers;
  plan.stages = {{.layers = {0, 4}, .role = StageRole::kPrefill},
                 {.layers = {4, 6}, .role = StageRole::kPrefill},
                 {.layers = {0, 2}, .role = StageRole::kDecode},
                 {.layers = {2, 6}, .role = StageRole::kDecode}};
  StartServer(1, plan);
  for (const char* name : {"p1", "p2", "d1", "d2"}) StartWorker(name);
  Ask(3, 5);  // opens the decode pipeline; before that requests continue by replay
  ExpectReference();
  Ask(12, 15);
  ExpectReference();
  const auto counters = server_->host().Describe().counters;
  EXPECT_GE(counters.moves, 12u);
  EXPECT_EQ(counters.moves_failed, 0u);
}

TEST_F(NetTest, ARunningRequestMigratesWithItsKv) {
  Plan plan;  // two pipelines through the whole model
  plan.num_layers = testing::kModel.num_layers;
  plan.stages = {{.layers = {0, 6}, .role = StageRole::kDecode},
                 {.layers = {0, 6}, .role = StageRole::kDecode},
                 {.layers = {0, 6}, .role = StageRole::kPrefill}};
  StartServer(1, plan);
  for (const char* name : {"a", "b", "c"}) StartWorker(name);
  Ask(1, 300);
  ASSERT_TRUE(WaitForTokens(40));
  // Move it between the two decode stages, there and back.
  int moved = 0;
  for (int i = 0; i < 2000 && moved < 2; ++i) {
    for (const auto& worker : server_->host().Describe().workers) {
      moved += server_->host().Migrate(ids_[0], worker.name).ok();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GE(moved, 1);
  ExpectReference();
  EXPECT_EQ(server_->host().Describe().counters.moves_failed, 0u);
}

TEST_F(NetTest, LinksAreMeasuredAlsoThoseOfTheController) {
  StartServer(2, {}, true);
  StartWorker("a");
  StartWorker("b");
  std::vector<LinkStatus> links;
  for (const Time end = clock_.Now() + Duration::Seconds(60);
       links.size() < 6 && clock_.Now() < end;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    links = server_->host().Describe().links;
  }
  std::set<std::pair<std::string, std::string>> ends;
  for (const LinkStatus& link : links) {
    ends.emplace(link.from, link.to);
    EXPECT_GT(link.latency_s, 0);
    EXPECT_LT(link.latency_s, 1);
    EXPECT_GT(link.bytes_per_s, 1e6);
  }
  EXPECT_EQ(ends, (std::set<std::pair<std::string, std::string>>{{"coordinator", "a"},
                                                                 {"coordinator", "b"},
                                                                 {"a", "coordinator"},
                                                                 {"b", "coordinator"},
                                                                 {"a", "b"},
                                                                 {"b", "a"}}));
  EXPECT_EQ(server_->host().Describe().counters.probes_failed, 0u);
}

TEST_F(NetTest, AWorkerThatIsToLeaveDoesNotLookForAnotherController) {
  StartServer(2);
  for (const char* name : {"a", "b", "c"}) StartWorker(name);
  Ask(1, 5);
  ExpectReference();
  workers_["a"]->process().Leave();  // its session goes on: nobody told the controller
  server_.reset();
  EXPECT_TRUE(workers_["a"]->WaitForEnd().ok());
  // While it tries to join.
  workers_["b"]->process().Leave();
  EXPECT_TRUE(workers_["b"]->WaitForEnd().ok());
  workers_["c"]->process().Stop();
  EXPECT_TRUE(workers_["c"]->WaitForEnd().ok());
}

TEST_F(NetTest, AWorkerThatIsToLeaveEndsAtItsDeadline) {
  StartServer(1);
  StartWorker("a");
  Ask(1, 5);
  ExpectReference();
  workers_["a"]->process().Leave(clock_.Now() + Duration::Millis(50));
  EXPECT_TRUE(workers_["a"]->WaitForEnd().ok());
}

TEST_F(NetTest, AWrongTokenIsRefusedForGood) {
  StartServer(1);
  WorkerProcessOptions options = testing::WorkerOptions("x", server_->port());
  options.security.token = "fedcba9876543210fedcba9876543210";
  testing::Worker stranger(std::move(options), clock_);
  EXPECT_EQ(stranger.WaitForEnd().code(), StatusCode::kUnauthenticated);
  EXPECT_TRUE(server_->host().Describe().workers.empty());
}

}  // namespace
}  // namespace millrace::cluster
