// Requests through a controller and one worker in this process: what a front end relies on.
#include "cluster/runtime/one_worker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "base/log.h"
#include "base/rng.h"
#include "stage/testing/hash_stage.h"
#include "stage/wrapped_stage.h"

namespace millrace::cluster {
namespace {

constexpr int kVocab = 1000;
constexpr int kBlocks = 64;
constexpr int64_t kUnlimitedSteps = int64_t{1} << 60;
const stage::HashModel kThreeLayers{.num_layers = 3, .vocab_size = kVocab};

// Runs as many steps as the test allows.
class CountedStage : public stage::WrappedStage {
 public:
  using WrappedStage::WrappedStage;

  void Allow(int64_t steps) {
    MutexLock lock(mutex_);
    allowed_ = steps;
    changed_.notify_all();
  }
  Status Run(std::span<stage::StagePart> parts) override {
    MutexLock lock(mutex_);
    changed_.wait(lock, [this]() MR_REQUIRES(mutex_) { return allowed_ > 0; });
    --allowed_;
    return WrappedStage::Run(parts);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int64_t allowed_ MR_GUARDED_BY(mutex_) = kUnlimitedSteps;
};

class OneWorkerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(InitLog("warning").ok());
    ControllerHostOptions options;
    options.controller.num_layers = kThreeLayers.num_layers;
    options.controller.waiting_max = 10000;
    sched::SchedulerOptions& scheduler = options.controller.scheduler;
    scheduler.num_host_blocks = 16;
    scheduler.max_num_batched_tokens = 128;
    scheduler.max_num_seqs = 32;
    scheduler.max_model_len = 512;
    scheduler.max_waiting = 10000;
    const LayerRange layers{0, kThreeLayers.num_layers};
    stage_ =
        std::make_shared<CountedStage>(std::make_unique<stage::HashStage>(kThreeLayers, layers));
    auto cluster = StartOneWorker(
        std::move(options), {.stage = stage_, .kv_bytes_per_token = 3 * 64, .num_blocks = kBlocks},
        clock_);
    ASSERT_TRUE(cluster.ok()) << cluster.status().ToString();
    cluster_ = std::move(*cluster);
    host_ = &cluster_->host();
  }

  static GenerationRequest Request(int prompt_tokens, int max_tokens, int n = 1) {
    GenerationRequest request;
    for (int i = 0; i < prompt_tokens; ++i) request.prompt.push_back(i % kVocab);
    request.params.max_tokens = max_tokens;
    request.params.n = n;
    request.params.seed = 1;
    return request;
  }

  SteadyClock clock_;
  std::shared_ptr<CountedStage> stage_;
  std::unique_ptr<LocalCluster> cluster_;
  ControllerHost* host_ = nullptr;
};

// Collects one request's output; every sequence must end exactly once.
struct Collector {
  OutputSink Sink() {
    return [this](RequestOutput&& output) {
      std::lock_guard lock(mutex);
      EXPECT_FALSE(finish.contains(output.index)) << "output after the end";
      auto& list = tokens[output.index];
      list.insert(list.end(), output.tokens.begin(), output.tokens.end());
      if (output.finish) finish[output.index] = *output.finish;
      if (output.times) {
        done = true;
        changed.notify_all();
      }
    };
  }
  void Wait() {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [this] { return done; }));
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::vector<TokenId>> tokens;
  std::map<int, FinishReason> finish;
  bool done = false;
};

TEST_F(OneWorkerTest, StartsWithAnOpenPipeline) {
  ASSERT_EQ(host_->Describe().pipelines.size(), 1u);
  EXPECT_TRUE(host_->Describe().pipelines.front().open) << "a request would wait";
}

TEST_F(OneWorkerTest, AnswersEachSequenceOnce) {
  Collector collector;
  ASSERT_TRUE(host_->Submit(Request(20, 10, 3), collector.Sink()).ok());
  collector.Wait();
  ASSERT_EQ(collector.tokens.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(collector.tokens[i].size(), 10u);
    EXPECT_EQ(collector.finish[i], FinishReason::kLength);
  }
  EXPECT_NE(collector.tokens[0], collector.tokens[1]);
}

TEST_F(OneWorkerTest, RefusesWhatNeverFitsWithTheNumbers) {
  Collector collector;
  Status status = host_->Submit(Request(600, 10), collector.Sink()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("512"), std::string::npos) << status.message();
}

TEST_F(OneWorkerTest, AbortEndsOneSequenceOrAll) {
  stage_->Allow(0);
  Collector one;
  auto id = host_->Submit(Request(10, 400, 2), one.Sink());
  ASSERT_TRUE(id.ok());
  host_->Abort(*id, 1);
  host_->Abort(*id, 1);
  host_->Abort(*id);
  host_->Abort(RequestId(12345));
  stage_->Allow(kUnlimitedSteps);
  one.Wait();
  EXPECT_EQ(one.finish[0], FinishReason::kAbort);
  EXPECT_EQ(one.finish[1], FinishReason::kAbort);
  EXPECT_FALSE(host_->Inspect(*id).has_value() &&
               host_->Inspect(*id)->state != sched::RequestState::kFinished);
}

TEST_F(OneWorkerTest, ASinkMayAbortAndSubmit) {
  stage_->Allow(1);
  Collector second;
  std::atomic<bool> submitted = false;
  Collector first;
  OutputSink inner = first.Sink();
  auto id = host_->Submit(Request(5, 300), [&](RequestOutput&& output) {
    RequestId request = output.request;
    inner(std::move(output));
    if (submitted.exchange(true)) return;
    EXPECT_TRUE(host_->Submit(Request(5, 3), second.Sink()).ok());
    host_->Abort(request);
    stage_->Allow(kUnlimitedSteps);
  });
  ASSERT_TRUE(id.ok());
  first.Wait();
  second.Wait();
  EXPECT_EQ(first.finish[0], FinishReason::kAbort);
}

TEST_F(OneWorkerTest, DrainRefusesNewRequestsAndFinishesRunningOnes) {
  Collector collector;
  ASSERT_TRUE(host_->Submit(Request(10, 50), collector.Sink()).ok());
  EXPECT_TRUE(host_->Drain(Duration::Seconds(60)));
  EXPECT_EQ(collector.finish[0], FinishReason::kLength);
  EXPECT_EQ(host_->Submit(Request(1, 1), collector.Sink()).status().code(),
            StatusCode::kUnavailable);
}

TEST_F(OneWorkerTest, DrainAbortsRequestsThatDoNotEndInTime) {
  std::vector<std::unique_ptr<Collector>> collectors;
  for (int i = 0; i < 200; ++i) {
    collectors.push_back(std::make_unique<Collector>());
    ASSERT_TRUE(host_
                    ->Submit(Request(10, 400),
                             [this, inner = collectors.back()->Sink()](RequestOutput&& output) {
                               // However fast the controller is, none ends earlier.
                               while (!host_->Stats().draining) std::this_thread::yield();
                               inner(std::move(output));
                             })
                    .ok());
  }
  EXPECT_FALSE(host_->Drain(Duration{}));
  for (auto& collector : collectors) collector->Wait();
}

// Feature 9 of the vLLM notes: after any mix of finishes and aborts, every block is free again.
void FinishAndAbort(Generator& generator, int requests, uint64_t seed) {
  std::atomic<int> ended = 0;
  std::vector<RequestId> alive;
  Rng rng(seed);
  for (int i = 0; i < requests; ++i) {
    GenerationRequest request;
    for (int64_t k = rng.Between(1, 60); k > 0; --k) {
      request.prompt.push_back(static_cast<TokenId>(rng.Between(0, 5)));
    }
    request.params.max_tokens = static_cast<int>(rng.Between(1, 40));
    request.params.n = rng.Between(0, 9) == 0 ? 3 : 1;
    auto id = generator.Submit(std::move(request), [&ended](RequestOutput&& output) {
      if (output.times) ++ended;
    });
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    alive.push_back(*id);
    if (rng.Between(0, 1) == 0) {
      generator.Abort(
          alive[static_cast<size_t>(rng.Between(0, static_cast<int64_t>(alive.size()) - 1))]);
    }
    if (rng.Between(0, 5) == 0) generator.Abort(*id, 0);
    while (i - ended > 200) std::this_thread::yield();
  }
  while (ended < requests) std::this_thread::yield();
}

TEST_F(OneWorkerTest, TenThousandEndsLeaveNoBlockBehind) {
  std::thread other([&] { FinishAndAbort(*host_, 5000, 1); });
  FinishAndAbort(*host_, 5000, 2);
  other.join();
  GeneratorStats stats = host_->Stats();
  EXPECT_EQ(stats.scheduler.blocks_free, stats.scheduler.blocks_total);
  EXPECT_EQ(stats.scheduler.host_blocks_used, 0);
  uint64_t finished = 0;
  for (uint64_t count : stats.scheduler.requests_finished) finished += count;
  EXPECT_EQ(finished, 10000u);
  EXPECT_EQ(stats.scheduler.requests_accepted, 10000u);
  EXPECT_FALSE(stats.stalled.has_value());
}

}  // namespace
}  // namespace millrace::cluster
