// Conversations over replicas: how much of their prompts is found in prefix caches, and what that
// does to the time to the first token. Compared with one replica and with routing by flow alone.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "sim/cluster/cluster_sim.h"
#include "sim/cluster/testing_plans.h"

namespace millrace::sim {
namespace {

constexpr int kConversations = 240, kTurns = 8;
constexpr int kTokensPerPart = 64;  // of a prompt: a question or an answer has several

// Every turn's prompt is the one before it, the answer, and a new question.
class Conversations : public Workload {
 public:
  Conversations() {
    Rng rng(1);
    prefixes_.reserve(kConversations * kTurns);
    for (int64_t c = 0; c < kConversations; ++c) {
      double at_s = 20 * rng.Uniform();
      std::vector<int64_t> parts;
      for (int turn = 0; turn < kTurns; ++turn) {
        for (int64_t more = rng.Between(2, 8); more > 0; --more) {
          parts.push_back(c * 1000 + std::ssize(parts));
        }
        prefixes_.push_back({.ids = parts, .tokens_per_id = kTokensPerPart});
        requests_.push_back({.arrival = Time{} + Duration::Seconds(at_s),
                             .prompt_tokens = static_cast<int>(parts.size()) * kTokensPerPart + 1,
                             .output_tokens = static_cast<int>(rng.Between(8, 32)),
                             .prefix = &prefixes_.back()});
        at_s += 4 + 8 * rng.Uniform();  // the answer, and time to read it
      }
    }
    std::ranges::sort(requests_, {}, &SimRequest::arrival);
  }
  std::optional<SimRequest> Next() override {
    return next_ < requests_.size() ? std::optional(requests_[next_++]) : std::nullopt;
  }

 private:
  std::vector<PromptPrefix> prefixes_;
  std::vector<SimRequest> requests_;
  size_t next_ = 0;
};

struct Outcome {
  double hit_rate = 0, ttft_p50_s = 0;
};

Outcome Simulate(int replicas, bool prefers_cached) {
  ClusterSimOptions options = ReplicaOptions(replicas);
  options.controller.scheduler.max_model_len = 8192;
  options.controller.scheduler.max_num_seqs = 64;
  options.controller.prefers_cached = prefers_cached;
  const auto sim = std::move(ClusterSim::Create(std::move(options))).value();
  Conversations workload;
  const ClusterReport report = sim->Run(workload);
  EXPECT_EQ(report.latency.requests, uint64_t{kConversations * kTurns});
  return {static_cast<double>(report.prefix_hit_tokens) /
              static_cast<double>(report.prefix_query_tokens),
          report.latency.ttft.At(0.5)};
}

TEST(PrefixRouting, ConversationsFindTheirPrefixOnFourReplicas) {
  const Outcome one = Simulate(1, true), by_flow = Simulate(4, false), cached = Simulate(4, true);
  const auto record = [](const char* name, double value) {
    RecordProperty(name, std::to_string(value));
  };
  record("one_replica_hit_rate", one.hit_rate);
  record("hit_rate", cached.hit_rate);
  record("hit_rate_by_flow", by_flow.hit_rate);
  record("ttft_p50_s", cached.ttft_p50_s);
  record("ttft_p50_s_by_flow", by_flow.ttft_p50_s);
  EXPECT_GE(cached.hit_rate, 0.9 * one.hit_rate);
  EXPECT_LE(by_flow.hit_rate, 0.6 * one.hit_rate);
  EXPECT_LE(cached.ttft_p50_s, 0.5 * by_flow.ttft_p50_s);
}

}  // namespace
}  // namespace millrace::sim
