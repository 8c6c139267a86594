// Dispatch to the pipelines of a plan by each policy, and what the controller measures for it.
#include <gtest/gtest.h>

#include "cluster/control/testing/scripted_workers.h"

namespace millrace::cluster {
namespace {

// Two replicas, each on one worker.
class Dispatch : public ScriptedWorkers {
 protected:
  void StartWith(DispatchPolicy policy, uint64_t seed = 0) {
    ControllerOptions options = Options();
    options.scheduler.max_model_len = 1024;
    options.scheduler.prefix_caching = false;  // the prompts are equal
    options.plan = Chains({{kAll, kBoth}, {kAll, kBoth}});
    options.dispatch = DispatchOptions{.policy = policy, .seed = seed};
    Start(std::move(options));
    Join(1);
    Join(2);
  }
  int64_t RequestsAt(uint64_t worker) const {
    for (const PipelineStatus& pipeline : Describe().pipelines) {
      if (pipeline.workers.front() == Name(worker)) return pipeline.requests;
    }
    return -1;
  }
  // The worker that the request went to.
  uint64_t Ask(uint64_t id, int prompt_tokens = 10) {
    const int64_t before = RequestsAt(1);
    EXPECT_TRUE(Submit(id, prompt_tokens).ok());
    return RequestsAt(1) > before ? 1 : 2;
  }
};

TEST_F(Dispatch, FewestRequests) {
  StartWith(DispatchPolicy::kFewestRequests);
  EXPECT_EQ(Ask(1, 500), 1u);
  EXPECT_EQ(Ask(2), 2u);
  EXPECT_EQ(Ask(3), 1u);
  c_->Abort(RequestId(2), {}, now_);
  EXPECT_EQ(Ask(4), 2u);
  EXPECT_EQ(Ask(5), 2u);
}

TEST_F(Dispatch, RoundRobinTakesTurns) {
  StartWith(DispatchPolicy::kRoundRobin);
  EXPECT_EQ(Ask(1), 1u);
  c_->Abort(RequestId(1), {}, now_);
  EXPECT_EQ(Ask(2), 2u) << "although the first has none";
  EXPECT_EQ(Ask(3), 1u);
}

TEST_F(Dispatch, RoundRobinPassesOverAReplicaThatIsDown) {
  StartWith(DispatchPolicy::kRoundRobin);
  EXPECT_EQ(Ask(1), 1u);
  Lose(2);
  EXPECT_EQ(Ask(2), 1u);
  EXPECT_EQ(Describe().waiting, 0);
}

TEST_F(Dispatch, RandomFollowsFromTheSeed) {
  const auto run = [&](uint64_t seed) {
    StartWith(DispatchPolicy::kRandom, seed);
    std::vector<uint64_t> workers;
    for (uint64_t id = 1; id <= 32; ++id) workers.push_back(Ask(id));
    EXPECT_GT(std::ranges::count(workers, 1u), 4);
    EXPECT_GT(std::ranges::count(workers, 2u), 4);
    return workers;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

TEST_F(Dispatch, PredictedTimeCountsPromptsWithoutAFirstToken) {
  StartWith(DispatchPolicy::kPredictedTime);
  EXPECT_EQ(Ask(1, 500), 1u);
  EXPECT_EQ(Ask(2, 100), 2u);
  EXPECT_EQ(Ask(3, 100), 2u) << "two short prompts take less time than a long one";
  Pass(0.5);
  EndStep(1);  // the long prompt has its first token
  EXPECT_EQ(Ask(4, 100), 1u);
}

// Both have 200 tokens ahead. The first has computed 400 tokens in 100 ms, the second 400 in 2 s.
TEST_F(Dispatch, PredictedTimeFollowsTheMeasuredRate) {
  StartWith(DispatchPolicy::kPredictedTime);
  uint64_t id = 0;
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(Ask(++id, 400), 1u);
    ASSERT_EQ(Ask(++id, 400), 2u);
    Pass(0.1);
    EndStep(1);
    Pass(1.9);
    EndStep(2);
    for (uint64_t done : {id - 1, id}) c_->Abort(RequestId(done), {}, now_);
    while (!steps_.empty()) EndStep(steps_.front().first);
  }
  ASSERT_EQ(Ask(++id, 200), 1u);
  ASSERT_EQ(Ask(++id, 200), 2u);
  EXPECT_EQ(Ask(++id, 400), 1u);
  EXPECT_EQ(Ask(++id, 400), 1u) << "600 tokens there take less time than 200 at the other";
}

// The first computes 4000 tokens per second, the second 200.
TEST_F(Dispatch, TheTtftIsPredictedFromWhatIsAheadAndTheMeasuredRates) {
  StartWith(DispatchPolicy::kRoundRobin);
  ASSERT_EQ(Ask(1, 400), 1u);
  EXPECT_FALSE(c_->PredictedTtft(100)) << "nothing was measured";
  Pass(0.1);
  EndStep(1);
  ASSERT_EQ(Ask(2, 400), 2u);
  EXPECT_NEAR(c_->PredictedTtft(100)->seconds(), 100.0 / 4000, 1e-6) << "the first is free";
  Pass(2);
  EndStep(2);
  for (uint64_t id : {1, 2}) c_->Abort(RequestId(id), {}, now_);
  while (!steps_.empty()) EndStep(steps_.front().first);
  ASSERT_EQ(Ask(3, 300), 1u);
  EXPECT_NEAR(c_->PredictedTtft(100)->seconds(), 400.0 / 4000, 1e-6);
  ASSERT_EQ(Ask(4, 300), 2u);
  EXPECT_NEAR(c_->PredictedTtft(100)->seconds(), 400.0 / 4000, 1e-6) << "not behind the slow one";
  Lose(1);
  EXPECT_GT(c_->PredictedTtft(100)->seconds(), 400.0 / 200) << "it is ahead in the other, too";
  Lose(2);
  EXPECT_FALSE(c_->PredictedTtft(100)) << "no pipeline is open";
}

// A decode pipeline computes no prompt of a request that is handed over with its KV.
TEST_F(Dispatch, AHandedOverPromptIsNotAheadOfOthers) {
  ControllerOptions options = Options();
  options.plan = Chains({{kAll, kPrefill}, {kAll, kDecode}, {kAll, kDecode}});
  Start(std::move(options));
  for (uint64_t worker : {1, 2, 3}) Join(worker);
  for (uint64_t id = 1; id <= 4; ++id) {
    ASSERT_TRUE(Submit(id, id == 1 ? 40 : 10).ok());
    EndStep(1);
  }
  EXPECT_EQ(RequestsAt(2), 2);
  EXPECT_EQ(RequestsAt(3), 2);
}

// Two replicas with prefix caches, or a prefill and a decode pipeline. Nothing is measured, so each
// computes 1000 tokens per second. Prompts of the same `text` begin alike.
class CachedPrefix : public ScriptedWorkers {
 protected:
  void StartWith(Plan plan, bool prefers_cached = true) {
    ControllerOptions options = Options();
    options.scheduler.max_model_len = 1024;
    options.plan = std::move(plan);
    options.prefers_cached = prefers_cached;
    Start(std::move(options));
    Join(1);
    Join(2);
  }
  // The worker that the request went to.
  uint64_t Ask(uint64_t id, TokenId text, int prompt_tokens, std::string key = "",
               std::string client = "") {
    sched::NewRequest request{.id = RequestId(id)};
    request.prompt_cache_key = std::move(key);
    request.client = std::move(client);
    request.prompt = std::make_shared<const std::vector<TokenId>>(prompt_tokens, text);
    request.params = std::make_shared<const SamplingParams>(SamplingParams{.max_tokens = 1});
    EXPECT_TRUE(c_->Submit(std::move(request), now_).ok());
    Settle();
    for (const PipelineStatus& pipeline : Describe().pipelines) {
      const auto requests = requests_.find(pipeline.workers.front());
      const int64_t had = requests == requests_.end() ? 0 : requests->second;
      if (pipeline.requests > had) {
        requests_[pipeline.workers.front()] = pipeline.requests;
        return pipeline.workers.front() == Name(1) ? 1 : 2;
      }
    }
    ADD_FAILURE() << "it waits";
    return 0;
  }
  void EndAll() {
    while (!steps_.empty()) EndStep(steps_.front().first);
    requests_.clear();
  }

  std::map<std::string, int64_t> requests_;  // by worker, when it last got one
};

TEST_F(CachedPrefix, DecidesUntilTheQueueThereIsLonger) {
  StartWith(Chains({{kAll, kBoth}, {kAll, kBoth}}));
  EXPECT_EQ(Ask(1, 5, 100), 1u);
  EndAll();
  EXPECT_EQ(Ask(2, 6, 200), 1u) << "nothing is cached anywhere";
  EXPECT_EQ(Ask(3, 5, 150), 2u) << "100 saved tokens are fewer than 200 in the queue";
  EndAll();
  EXPECT_EQ(Ask(4, 7, 50), 1u);
  EXPECT_EQ(Ask(5, 6, 300), 1u) << "200 saved tokens are more than 50 in the queue";
  EXPECT_EQ(Ask(6, 8, 100), 2u);
}

// A key counts while nothing is cached: the first of them is still being computed.
TEST_F(CachedPrefix, AKeyGoesWhereItWentBeforeUnlessTheQueueThereIsLonger) {
  StartWith(Chains({{kAll, kBoth}, {kAll, kBoth}}));
  EXPECT_EQ(Ask(1, 5, 100, "k"), 1u);
  EXPECT_EQ(Ask(2, 6, 150), 2u);
  EXPECT_EQ(Ask(3, 7, 10), 1u);
  EXPECT_EQ(Ask(4, 5, 100, "k"), 1u);
  EXPECT_EQ(Ask(5, 5, 50, "k"), 2u) << "210 tokens are ahead there, here 150";
  EXPECT_EQ(Ask(6, 5, 50, "k"), 2u) << "from now on the key is here, with 200 ahead to 210";
  EXPECT_EQ(Ask(7, 5, 50, "k", "another client"), 1u);
}

TEST_F(CachedPrefix, IsIgnoredOnRequest) {
  StartWith(Chains({{kAll, kBoth}, {kAll, kBoth}}), /*prefers_cached=*/false);
  EXPECT_EQ(Ask(1, 6, 200), 1u);
  EndAll();
  EXPECT_EQ(Ask(2, 7, 50), 1u);
  EXPECT_EQ(Ask(3, 6, 300), 2u);
}

// Conditional disaggregation.
TEST_F(CachedPrefix, AShortRestOfAPromptStaysOnDecodeWhenThatIsFaster) {
  StartWith(Chains({{kAll, kPrefill}, {kAll, kDecode}}));
  EXPECT_EQ(Ask(1, 5, 40), 1u) << "both would take as long";
  EXPECT_EQ(Ask(2, 6, 40), 2u) << "the prefill worker has 40 tokens to compute first";
  EXPECT_EQ(Ask(3, 7, 400), 1u) << "a long prompt would delay those that decode";
  EndAll();
  EXPECT_EQ(Ask(4, 6, 60), 2u) << "40 of its tokens are cached there";
}

}  // namespace
}  // namespace millrace::cluster
