// Prompts with equal prefix ids, and how much of them the production prefix cache finds.
#include "sim/load/prompts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sim/fast/service.h"

namespace millrace::sim {
namespace {

using TokenIds = std::vector<TokenId>;

std::ptrdiff_t SharedBeginning(const TokenIds& a, const TokenIds& b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

TEST(PromptsTest, AreEqualWhereTheirIdsAre) {
  Prompts prompts(true);
  const PromptPrefix one{.ids = {7, 8, 9}, .tokens_per_id = 16};
  const PromptPrefix two{.ids = {7, 8, 5}, .tokens_per_id = 16};
  const auto of = [&](const PromptPrefix* prefix, int tokens, uint64_t id) {
    return *prompts.Of({.prompt_tokens = tokens, .prefix = prefix}, RequestId(id));
  };
  EXPECT_EQ(of(&one, 60, 1), of(&one, 60, 1)) << "the same in every call";
  EXPECT_EQ(of(&one, 60, 1).size(), 60u);
  EXPECT_EQ(SharedBeginning(of(&one, 60, 1), of(&one, 60, 2)), 48) << "then each has its own";
  EXPECT_EQ(SharedBeginning(of(&one, 60, 1), of(&two, 60, 2)), 32);
  EXPECT_EQ(SharedBeginning(of(&one, 60, 1), of(&one, 40, 2)), 40) << "the last part is cut short";
  EXPECT_EQ(SharedBeginning(of(nullptr, 60, 1), of(nullptr, 60, 2)), 0);
}

// Without a prefix cache nobody looks at the tokens.
TEST(PromptsTest, AreOneObjectWithoutACache) {
  Prompts prompts(false);
  const SimRequest request{.prompt_tokens = 100};
  EXPECT_EQ(prompts.Of(request, RequestId(1)), prompts.Of(request, RequestId(2)));
}

class PerToken : public cost::StepCost {
 public:
  double Seconds(const cost::BatchShape& batch) const override {
    return 1e-3 + 1e-5 * static_cast<double>(batch.prefill_tokens);
  }
};

const PerToken kCost;

InstanceOptions CachingInstance() {
  InstanceOptions instance;
  instance.stages = {&kCost};
  instance.scheduler.block_size = 16;
  instance.scheduler.num_blocks = 4096;
  instance.scheduler.max_num_seqs = 8;
  instance.scheduler.max_num_batched_tokens = 1024;
  instance.scheduler.max_model_len = 1024;
  return instance;
}

ServiceReport RunOn(const ServiceOptions& options, std::vector<TraceEntry> entries) {
  auto service = Service::Create(options);
  EXPECT_TRUE(service.ok());
  return (*service)->Run(*NewReplay(std::move(entries), std::nullopt));
}

// Requests one after the other, each with a prompt of 320 tokens that begins with 160 shared ones.
std::vector<TraceEntry> OneAfterTheOther(int requests, const PromptPrefix& prefix) {
  std::vector<TraceEntry> entries;
  for (int i = 0; i < requests; ++i) {
    entries.push_back(
        {.arrival_s = i * 1.0, .input_tokens = 320, .output_tokens = 4, .prefix = prefix});
  }
  return entries;
}

TEST(PrefixCacheTest, TheHitRateIsThatOfTheTrace) {
  const auto run = RunOn({.instances = {CachingInstance()}},
                         OneAfterTheOther(10, {.ids = {1}, .tokens_per_id = 160}));
  EXPECT_EQ(run.prefix_query_tokens, 3200u);
  EXPECT_EQ(run.prefix_hit_tokens, 9 * 160u) << "all but the first find the shared half";
  const auto cold = RunOn({.instances = {CachingInstance()}}, OneAfterTheOther(10, {}));
  EXPECT_EQ(cold.prefix_hit_tokens, 0u);
  // The others compute 160 tokens of 10 us less.
  const double difference = cold.latency.ttft.mean() - run.latency.ttft.mean();
  EXPECT_NEAR(difference, 0.9 * 160 * 1e-5, 1e-9);
}

// Each instance has a cache of its own, so each computes the prefix once.
TEST(PrefixCacheTest, InstancesDoNotShareACache) {
  const auto run = RunOn({.instances = {CachingInstance(), CachingInstance()},
                          .dispatch = cluster::DispatchPolicy::kRoundRobin},
                         OneAfterTheOther(10, {.ids = {1}, .tokens_per_id = 160}));
  EXPECT_EQ(run.prefix_hit_tokens, 8 * 160u);
}

// The prefix is too long to stay while other prompts of the same length pass through.
TEST(PrefixCacheTest, WhatWasEvictedIsNotFound) {
  InstanceOptions small = CachingInstance();
  small.scheduler.num_blocks = 30;  // a prompt takes 20 and an answer one
  std::vector<TraceEntry> entries;
  for (int i = 0; i < 10; ++i) {
    entries.push_back({.arrival_s = i * 1.0,
                       .input_tokens = 320,
                       .output_tokens = 4,
                       .prefix = {.ids = {i % 2}, .tokens_per_id = 320}});
  }
  const auto run = RunOn({.instances = {small}}, entries);
  EXPECT_LT(run.prefix_hit_tokens, 8 * 160u);
  const auto large = RunOn({.instances = {CachingInstance()}}, entries);
  EXPECT_EQ(large.prefix_hit_tokens, 8 * 304u) << "of a whole prompt the last block is computed";
}

TEST(PrefixCacheTest, SyntheticPromptsDrawAPrefix) {
  const auto service = Service::Create({.instances = {CachingInstance()}}).value();
  const auto workload = NewSynthetic({.requests = 400,
                                      .rate = 1,
                                      .prompt = {.a = 320},
                                      .output = {.a = 4},
                                      .prefixes = {.count = 4, .tokens = 160}});
  const ServiceReport run = service->Run(*workload);
  EXPECT_EQ(run.prefix_hit_tokens, (400 - 4) * 160u);
}

}  // namespace
}  // namespace millrace::sim
