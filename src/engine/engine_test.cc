#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>

#include "base/log.h"
#include "base/rng.h"
#include "engine/fake_executor.h"

namespace millrace::engine {
namespace {

constexpr int kVocab = 1000;

ExecutorTraits SmallTraits() {
  ExecutorTraits traits;
  traits.num_blocks = 64;
  traits.num_host_blocks = 16;
  traits.max_batched_tokens = 128;
  traits.max_sequences = 32;
  return traits;
}

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() { Restart(SmallTraits()); }

  void Restart(const ExecutorTraits& traits) {
    EXPECT_TRUE(InitLog("warning").ok());
    EngineOptions options;
    options.scheduler.max_model_len = 512;
    options.scheduler.max_waiting = 10000;
    engine_.reset();
    auto engine = Engine::Start(options, std::make_unique<FakeExecutor>(traits, kVocab), clock_);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(*engine);
  }

  static EngineRequest Request(int prompt_tokens, int max_tokens, int n = 1) {
    EngineRequest request;
    for (int i = 0; i < prompt_tokens; ++i) request.prompt.push_back(i % kVocab);
    request.params.max_tokens = max_tokens;
    request.params.n = n;
    request.params.seed = 1;
    return request;
  }

  SteadyClock clock_;
  std::unique_ptr<Engine> engine_;
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

TEST_F(EngineTest, AnswersEachSequenceOnce) {
  Collector collector;
  ASSERT_TRUE(engine_->Submit(Request(20, 10, 3), collector.Sink()).ok());
  collector.Wait();
  ASSERT_EQ(collector.tokens.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(collector.tokens[i].size(), 10u);
    EXPECT_EQ(collector.finish[i], FinishReason::kLength);
  }
  EXPECT_NE(collector.tokens[0], collector.tokens[1]);
}

TEST_F(EngineTest, RefusesWhatNeverFitsWithTheNumbers) {
  Collector collector;
  Status status = engine_->Submit(Request(600, 10), collector.Sink()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("512"), std::string::npos) << status.message();
}

TEST_F(EngineTest, AbortEndsOneSequenceOrAll) {
  Collector one;
  std::promise<void> aborted;
  auto id = engine_->Submit(
      Request(10, 400, 2),
      [inner = one.Sink(), over = aborted.get_future().share()](RequestOutput&& output) {
        over.wait();  // however fast the engine is, neither ends earlier
        inner(std::move(output));
      });
  ASSERT_TRUE(id.ok());
  engine_->Abort(*id, 1);
  engine_->Abort(*id, 1);
  engine_->Abort(*id);
  engine_->Abort(RequestId(12345));
  aborted.set_value();
  one.Wait();
  EXPECT_EQ(one.finish[0], FinishReason::kAbort);
  EXPECT_EQ(one.finish[1], FinishReason::kAbort);
  EXPECT_FALSE(engine_->Inspect(*id).has_value() &&
               engine_->Inspect(*id)->state != sched::RequestState::kFinished);
}

TEST_F(EngineTest, ASinkMayAbortAndSubmit) {
  Collector second;
  std::atomic<bool> submitted = false;
  Collector first;
  OutputSink inner = first.Sink();
  auto id = engine_->Submit(Request(5, 300), [&](RequestOutput&& output) {
    RequestId request = output.request;
    inner(std::move(output));
    if (submitted.exchange(true)) return;
    EXPECT_TRUE(engine_->Submit(Request(5, 3), second.Sink()).ok());
    engine_->Abort(request);
  });
  ASSERT_TRUE(id.ok());
  first.Wait();
  second.Wait();
  EXPECT_EQ(first.finish[0], FinishReason::kAbort);
}

TEST_F(EngineTest, DrainRefusesNewRequestsAndFinishesRunningOnes) {
  Collector collector;
  ASSERT_TRUE(engine_->Submit(Request(10, 50), collector.Sink()).ok());
  EXPECT_TRUE(engine_->Drain(Duration::Seconds(60)));
  EXPECT_EQ(collector.finish[0], FinishReason::kLength);
  EXPECT_EQ(engine_->Submit(Request(1, 1), collector.Sink()).status().code(),
            StatusCode::kUnavailable);
}

TEST_F(EngineTest, DrainWaitsForTheLastOutputToBeDelivered) {
  std::promise<void> being_delivered;
  std::atomic<bool> delivered = false;
  ASSERT_TRUE(engine_
                  ->Submit(Request(1, 1),
                           [&](RequestOutput&& output) {
                             ASSERT_TRUE(output.times.has_value());
                             being_delivered.set_value();
                             std::this_thread::sleep_for(std::chrono::milliseconds(20));
                             delivered = true;
                           })
                  .ok());
  being_delivered.get_future().wait();
  EXPECT_TRUE(engine_->Drain(Duration::Seconds(60)));
  EXPECT_TRUE(delivered);
}

TEST_F(EngineTest, DrainAbortsRequestsThatDoNotEndInTime) {
  std::vector<std::unique_ptr<Collector>> collectors;
  for (int i = 0; i < 200; ++i) {
    collectors.push_back(std::make_unique<Collector>());
    ASSERT_TRUE(engine_
                    ->Submit(Request(10, 400),
                             [this, inner = collectors.back()->Sink()](RequestOutput&& output) {
                               // However fast the engine is, none ends earlier.
                               while (!engine_->Stats().draining) std::this_thread::yield();
                               inner(std::move(output));
                             })
                    .ok());
  }
  EXPECT_FALSE(engine_->Drain(Duration{}));
  for (auto& collector : collectors) collector->Wait();
}

// Feature 9 of the vLLM notes: after any mix of finishes and aborts, every block is free again.
void FinishAndAbort(Engine& engine, int requests, uint64_t seed) {
  std::atomic<int> ended = 0;
  std::vector<RequestId> alive;
  Rng rng(seed);
  for (int i = 0; i < requests; ++i) {
    EngineRequest request;
    for (int64_t k = rng.Between(1, 60); k > 0; --k) {
      request.prompt.push_back(static_cast<TokenId>(rng.Between(0, 5)));
    }
    request.params.max_tokens = static_cast<int>(rng.Between(1, 40));
    request.params.n = rng.Between(0, 9) == 0 ? 3 : 1;
    auto id = engine.Submit(std::move(request), [&ended](RequestOutput&& output) {
      if (output.times) ++ended;
    });
    ASSERT_TRUE(id.ok()) << id.status().ToString();
    alive.push_back(*id);
    if (rng.Between(0, 1) == 0) {
      engine.Abort(
          alive[static_cast<size_t>(rng.Between(0, static_cast<int64_t>(alive.size()) - 1))]);
    }
    if (rng.Between(0, 5) == 0) engine.Abort(*id, 0);
    while (i - ended > 200) std::this_thread::yield();
  }
  while (ended < requests) std::this_thread::yield();
}

TEST_F(EngineTest, TenThousandEndsLeaveNoBlockBehind) {
  std::thread other([&] { FinishAndAbort(*engine_, 5000, 1); });
  FinishAndAbort(*engine_, 5000, 2);
  other.join();
  EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.scheduler.blocks_free, stats.scheduler.blocks_total);
  EXPECT_EQ(stats.scheduler.host_blocks_used, 0);
  uint64_t finished = 0;
  for (uint64_t count : stats.scheduler.requests_finished) finished += count;
  EXPECT_EQ(finished, 10000u);
  EXPECT_EQ(stats.scheduler.requests_accepted, 10000u);
  EXPECT_FALSE(stats.stalled.has_value());
}

TEST_F(EngineTest, SeveralStagesInFlight) {
  ExecutorTraits traits = SmallTraits();
  traits.stages = 3;
  Restart(traits);
  FinishAndAbort(*engine_, 500, 3);
  EXPECT_EQ(engine_->Stats().scheduler.blocks_free, traits.num_blocks);
}

}  // namespace
}  // namespace millrace::engine
