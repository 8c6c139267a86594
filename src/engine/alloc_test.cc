// A step of decoding allocates nothing, in one stage or in several.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/chained_executor.h"
#include "engine/local_executor.h"
#include "engine/testing_pipelines.h"
#include "model/test_folder.h"

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

namespace millrace::engine {
namespace {

// Allocations in 40 steps of eight decoding sequences, between the growths of their tables and
// texts (at 65 and 129 tokens).
long DecodeAllocations(Executor& executor) {
  sched::SchedulerOptions options;
  options.num_blocks = 100;
  options.max_num_batched_tokens = executor.traits().max_batched_tokens;
  options.max_num_seqs = 8 / executor.traits().stages;
  options.max_model_len = 160;
  options.stages = executor.traits().stages;
  auto scheduler = std::move(sched::Scheduler::Create(options)).value();
  std::vector<TestRequest> requests(8);
  for (TestRequest& r : requests) {
    r.prompt.assign(33, 17);
    r.params.max_tokens = 120;
    r.params.temperature = 0;
    r.params.ignore_eos = true;
  }
  AddRequests(*scheduler, requests);
  std::vector<RequestOutput> outputs;
  const auto step = [&] {
    while (const StepPlan* plan = scheduler->Schedule(Time{})) executor.Submit(*plan);
    scheduler->Commit(executor.Wait(), Time{}, outputs);
    for (const RequestOutput& out : outputs) ASSERT_TRUE(out.error.ok()) << out.error.ToString();
    outputs.clear();
  };
  for (int i = 0; i < 40 * executor.traits().stages; ++i) step();
  const long before = allocations;
  for (int i = 0; i < 40 * executor.traits().stages; ++i) step();
  const long counted = allocations - before;
  while (scheduler->HasWork()) step();
  return counted;
}

TEST(Allocations, NoneInADecodingStep) {
  model::TestFolder folder;
  const std::string path = MakeTinyModel(folder.path(), "llama-160m");
  auto device = NewTestDevice();
  auto model = LoadTestModel(path, *device);
  auto local = LocalExecutor::Create(std::move(device), std::move(model), {.num_blocks = 100});
  ASSERT_TRUE(local.ok());
  EXPECT_EQ(DecodeAllocations(**local), 0);

  std::vector<std::unique_ptr<Stage>> stages;
  stages.push_back(NewTestStage(path, {.layers = LayerRange{0, 2}}));
  stages.push_back(NewTestStage(path, {.layers = LayerRange{2, 6}}));
  auto chained =
      ChainedExecutor::Create(std::move(stages), {.num_blocks = 100, .max_batched_tokens = 64});
  ASSERT_TRUE(chained.ok());
  EXPECT_EQ(DecodeAllocations(**chained), 0);
}

}  // namespace
}  // namespace millrace::engine
