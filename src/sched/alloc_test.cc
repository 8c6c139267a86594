// Feature 35: decoding allocates nothing once every list has reached its size.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "sched/scheduler.h"
#include "sched/testing/small.h"

namespace {
std::atomic<long> allocations = 0;
}

void* operator new(size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace millrace::sched {
namespace {

// Steps of `running` decoding requests of n sequences; returns the allocations of the last 100
// steps.
long DecodeAllocations(int running, int n, int stages, bool prefix_caching,
                       KvPolicy kv_policy = KvPolicy::kPaged) {
  SchedulerOptions o;
  o.block_size = 16;
  o.num_blocks = running * n * 64;
  o.max_num_seqs = running * n;
  o.max_num_batched_tokens = 1 << 16;
  o.max_model_len = 1024;
  o.stages = stages;
  o.prefix_caching = prefix_caching;
  o.kv_policy = kv_policy;
  auto scheduler = std::move(Scheduler::Create(o)).value();
  for (int i = 0; i < running; ++i) {
    MR_CHECK(scheduler
                 ->Add({.id = RequestId(i + 1),
                        .prompt = std::make_shared<const std::vector<TokenId>>(Prompt(20 + i, i)),
                        .params = std::make_shared<const SamplingParams>(MaxTokens(900, n))},
                       Time{})
                 .ok());
  }
  StepResult result;
  std::vector<RequestOutput> outputs;
  std::vector<std::pair<StepId, std::vector<SequenceId>>> flights(stages);
  int64_t scheduled = 0, committed = 0;
  long counted = 0;
  for (int step = 0; step < 200; ++step) {
    const long before = allocations;
    const StepPlan* plan = scheduler->Schedule(Time{step});
    if (step >= 100) counted += allocations - before;
    if (plan) {
      auto& [id, sequences] = flights[scheduled++ % stages];
      id = plan->id;
      sequences.clear();
      for (const SequenceStep& s : plan->sequences) sequences.push_back(s.id);
      if (scheduled - committed < stages && step < 100) continue;
    }
    const auto& [id, sequences] = flights[committed++ % stages];
    result.id = id;
    result.sequences.resize(sequences.size());
    for (size_t i = 0; i < sequences.size(); ++i) {
      result.sequences[i].id = sequences[i];
      result.sequences[i].token = 5;
    }
    outputs.clear();
    const long before_commit = allocations;
    scheduler->Commit(result, Time{step}, outputs);
    if (step >= 100) counted += allocations - before_commit;
    EXPECT_FALSE(outputs.empty());
  }
  scheduler->CheckIntegrity();
  return counted;
}

TEST(Allocations, NoneInSteadyDecode) {
  for (bool prefix_caching : {false, true}) {
    EXPECT_EQ(DecodeAllocations(64, 1, 1, prefix_caching), 0);
    EXPECT_EQ(DecodeAllocations(16, 4, 1, prefix_caching), 0);
    EXPECT_EQ(DecodeAllocations(64, 1, 2, prefix_caching), 0);
    EXPECT_EQ(DecodeAllocations(64, 1, 1, prefix_caching, KvPolicy::kOrcaMax), 0);
    EXPECT_EQ(DecodeAllocations(16, 4, 1, prefix_caching, KvPolicy::kOrcaOracle), 0);
  }
}

TEST(Allocations, TheCounterCounts) {
  const long before = allocations;
  ::operator delete(::operator new(8));
  EXPECT_EQ(allocations, before + 1);
}

}  // namespace
}  // namespace millrace::sched
