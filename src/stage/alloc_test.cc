// A step of decoding allocates nothing, in one stage or in several.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "model/test_folder.h"
#include "stage/stage_runner.h"
#include "stage/testing/pipelines.h"

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

namespace millrace::stage {
namespace {

constexpr int kBlocks = 100;
constexpr int kBatchedTokens = 64;  // what the test stages take

// Two stages, run one after the other.
class TwoStages {
 public:
  TwoStages(std::unique_ptr<Stage> first, std::unique_ptr<Stage> second) {
    stages_[0] = std::move(first);
    stages_[1] = std::move(second);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(stages_[i]
                      ->OpenPipeline(kPipeline, {.layers = stages_[i]->layers(),
                                                 .num_blocks = kBlocks,
                                                 .first = i == 0,
                                                 .last = i == 1})
                      .ok());
      parts_[i].pipeline = kPipeline;
    }
  }
  const StepResult& Run(const StepPlan& plan) {
    const std::span<const SequenceView> sequences = tables_.Advance(plan);
    for (size_t i = 0; i < 2; ++i) {
      parts_[i].plan = &plan;
      parts_[i].sequences = sequences;
      if (i == 1) parts_[i].input = parts_[0].output;
      const Status ran = stages_[i]->Run({&parts_[i], 1});
      EXPECT_TRUE(ran.ok()) << ran.ToString();
    }
    return parts_[1].result;
  }

 private:
  static constexpr PipelineId kPipeline{1};
  std::unique_ptr<Stage> stages_[2];
  SequenceTables tables_;
  StagePart parts_[2];
};

// Allocations in 40 steps of eight decoding sequences, between the growths of their tables and
// texts (at 65 and 129 tokens).
template <typename Runner>
long DecodeAllocations(Runner& runner) {
  sched::SchedulerOptions options;
  options.num_blocks = kBlocks;
  options.max_num_batched_tokens = kBatchedTokens;
  options.max_num_seqs = 8;
  options.max_model_len = 160;
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
    const StepPlan* plan = scheduler->Schedule(Time{});
    ASSERT_NE(plan, nullptr);
    scheduler->Commit(runner.Run(*plan), Time{}, outputs);
    for (const RequestOutput& out : outputs) ASSERT_TRUE(out.error.ok()) << out.error.ToString();
    outputs.clear();
  };
  for (int i = 0; i < 40; ++i) step();
  const long before = allocations;
  for (int i = 0; i < 40; ++i) step();
  const long counted = allocations - before;
  while (scheduler->HasWork()) step();
  return counted;
}

TEST(Allocations, NoneInADecodingStep) {
  model::TestFolder folder;
  const std::string path = MakeTinyModel(folder.path(), "llama-160m");
  auto device = NewTestDevice();
  auto model = LoadTestModel(path, *device);
  auto whole = StageRunner::Create(std::move(device), std::move(model), {.num_blocks = kBlocks});
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(DecodeAllocations(**whole), 0);

  TwoStages halves(NewTestStage(path, {.layers = LayerRange{0, 2}}),
                   NewTestStage(path, {.layers = LayerRange{2, 6}}));
  EXPECT_EQ(DecodeAllocations(halves), 0);
}

}  // namespace
}  // namespace millrace::stage
