// Promise 1: an answer depends on the test request only. The same 200 random requests, greedy and
// seeded or for a vector, through the real model, scheduler and cache in every way a busy server
// may run them: each time the tokens must be the same.
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>

#include "base/log.h"
#include "base/rng.h"
#include "base/testing/source_path.h"
#include "cluster/runtime/one_worker.h"
#include "stage/model_stage.h"
#include "tensor/cpu/cpu_device.h"

namespace millrace {
namespace {

constexpr int kRequests = 200;
constexpr int kMaxTokens = 16;

struct Setup {
  int threads = 1;
  int max_num_batched_tokens = 512;
  int max_num_seqs = 64;
  int num_blocks = 2048;
  int num_host_blocks = 0;
  bool prefix_caching = true;
  bool together = true;
  sched::PreemptionMode preemption = sched::PreemptionMode::kRecompute;
};

struct OneAnswer {
  std::vector<TokenId> tokens;
  std::vector<float> pooled;
  friend auto operator<=>(const OneAnswer&, const OneAnswer&) = default;
};
using Answers = std::map<std::pair<int, int>, OneAnswer>;  // by request and index

struct Outcome {
  Answers answers;
  cluster::GeneratorStats stats;
};

std::vector<cluster::GenerationRequest> RandomRequests(int vocab) {
  Rng rng(2026);
  std::vector<TokenId> shared(48);  // a prefix that many have in common
  for (TokenId& token : shared) token = static_cast<TokenId>(rng.Between(0, vocab - 1));
  std::vector<cluster::GenerationRequest> requests(kRequests);
  for (int i = 0; i < kRequests; ++i) {
    cluster::GenerationRequest& request = requests[i];
    if (i % 3 == 0) request.prompt.assign(shared.begin(), shared.begin() + rng.Between(1, 48));
    const int64_t own = rng.Between(1, 60);
    for (int64_t k = 0; k < own; ++k) {
      request.prompt.push_back(static_cast<TokenId>(rng.Between(0, vocab - 1)));
    }
    request.params.max_tokens = kMaxTokens;
    request.params.ignore_eos = i % 2 == 0;
    request.params.temperature = i % 2 == 0 ? 0.0 : 0.9;
    request.params.seed = static_cast<uint64_t>(i);
    if (i % 10 == 1) request.params.n = 3;
    if (i % 10 == 3) request.params.top_p = 0.9;
    if (i % 10 == 5) request.params.frequency_penalty = 0.5;
    if (i % 10 == 9) {
      request.params.temperature = 0;
      request.params.n = 4;
      request.params.beam_search = true;
    }
    if (i % 10 == 7) request.params.pooling = i % 20 == 7 ? Pooling::kLast : Pooling::kMean;
  }
  return requests;
}

class Inbox {
 public:
  cluster::OutputSink SinkFor(int request) {
    return [this, request](RequestOutput&& output) {
      std::lock_guard lock(mutex_);
      auto& [tokens, pooled] = answers_[{request, output.index}];
      if (!output.pooled.empty()) pooled = std::move(output.pooled);
      tokens.insert(tokens.end(), output.tokens.begin(), output.tokens.end());
      EXPECT_TRUE(output.error.ok()) << output.error.ToString();
      if (output.times) {
        ++done_;
        changed_.notify_all();
      }
    };
  }
  void WaitFor(int done) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= done; });
  }
  Answers Take() { return std::move(answers_); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int done_ = 0;
  Answers answers_;
};

Outcome RunAll(const Setup& setup) {
  EXPECT_TRUE(InitLog("warning").ok());
  auto device = tensor::NewCpuDevice({.threads = setup.threads});
  EXPECT_TRUE(device.ok());
  model::LoadOptions load;
  load.max_batched_tokens = setup.max_num_batched_tokens;
  auto model = model::Model::Load(SourcePath("models/demo"), **device, load);
  EXPECT_TRUE(model.ok()) << model.status().ToString();
  const ModelSpec spec = (*model)->spec();
  cluster::ControllerHostOptions options;
  options.controller.num_layers = spec.num_layers;
  sched::SchedulerOptions& scheduler = options.controller.scheduler;
  scheduler.max_model_len = spec.max_position;
  scheduler.num_blocks = setup.num_blocks;
  scheduler.num_host_blocks = setup.num_host_blocks;
  scheduler.max_num_seqs = setup.max_num_seqs;
  scheduler.max_num_batched_tokens = setup.max_num_batched_tokens;
  scheduler.prefix_caching = setup.prefix_caching;
  scheduler.preemption = setup.preemption;
  scheduler.eos_token_ids = (*model)->generation_config().eos;
  cluster::OneWorker worker;
  worker.kv_bytes_per_token = spec.KvBytesPerToken();
  worker.num_blocks = setup.num_blocks;
  worker.stage = std::make_shared<stage::ModelStage>(std::move(*device), std::move(*model));
  SteadyClock clock;
  Inbox inbox;
  auto cluster = cluster::StartOneWorker(std::move(options), std::move(worker), clock);
  EXPECT_TRUE(cluster.ok()) << cluster.status().ToString();
  cluster::ControllerHost& host = (*cluster)->host();
  auto requests = RandomRequests(spec.vocab_size);
  for (int i = 0; i < kRequests; ++i) {
    auto id = host.Submit(std::move(requests[i]), inbox.SinkFor(i));
    EXPECT_TRUE(id.ok()) << id.status().ToString();
    if (!setup.together) inbox.WaitFor(i + 1);
  }
  inbox.WaitFor(kRequests);
  Outcome outcome;
  outcome.stats = host.Stats();
  EXPECT_EQ(outcome.stats.scheduler.blocks_free, outcome.stats.scheduler.blocks_total);
  outcome.answers = inbox.Take();
  return outcome;
}

class Invariance : public ::testing::Test {
 protected:
  // Alone, one thread, no cache: the answer everything else must repeat.
  static const Answers& Alone() {
    static const Answers answers = RunAll({.prefix_caching = false, .together = false}).answers;
    return answers;
  }
};

TEST_F(Invariance, TheReferenceIsNotTrivial) {
  std::map<OneAnswer, int> distinct;
  size_t vectors = 0;
  for (const auto& [key, answer] : Alone()) {
    ++distinct[answer];
    vectors += !answer.pooled.empty();
  }
  EXPECT_GT(distinct.size(), 150u);
  EXPECT_EQ(vectors, 20u);
}

TEST_F(Invariance, AllTogetherWithTwoThreads) {
  EXPECT_EQ(RunAll({.threads = 2, .prefix_caching = false}).answers, Alone());
}

TEST_F(Invariance, PrefixCacheOn) {
  Outcome outcome = RunAll({.threads = 2});
  EXPECT_GT(outcome.stats.scheduler.prefix_hit_tokens, 0u);
  EXPECT_EQ(outcome.answers, Alone());
}

TEST_F(Invariance, Chunked) {
  EXPECT_EQ(RunAll({.threads = 2, .max_num_batched_tokens = 7, .max_num_seqs = 7}).answers,
            Alone());
}

TEST_F(Invariance, PreemptedByRecompute) {
  Outcome outcome = RunAll({.threads = 2, .num_blocks = 24, .prefix_caching = false});
  EXPECT_GT(outcome.stats.scheduler.preemptions_recompute, 0u);
  EXPECT_EQ(outcome.answers, Alone());
}

TEST_F(Invariance, PreemptedByRecomputeWithTheCache) {
  Outcome outcome = RunAll({.num_blocks = 24});
  EXPECT_GT(outcome.stats.scheduler.preemptions_recompute, 0u);
  EXPECT_EQ(outcome.answers, Alone());
}

TEST_F(Invariance, PreemptedBySwap) {
  Outcome outcome = RunAll({.threads = 2,
                            .num_blocks = 24,
                            .num_host_blocks = 256,
                            .preemption = sched::PreemptionMode::kSwap});
  EXPECT_GT(outcome.stats.scheduler.preemptions_swap, 0u);
  EXPECT_EQ(outcome.answers, Alone());
}

}  // namespace
}  // namespace millrace
