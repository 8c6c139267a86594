// vLLM section 6.3, figure 15: how much KV memory sequences of one prompt save by sharing blocks:
// blocks that were not needed because of sharing, over those that would be needed without it. With
// beam search more is shared than the prompt, since beams come from the same beams. Here: the demo
// model, prompts that it writes itself, lengths as of the paper's two data sets.
#include <gtest/gtest.h>

#include "base/testing/source_path.h"
#include "model/model.h"
#include "stage/run_alone.h"
#include "tensor/cpu/cpu_device.h"

namespace millrace {
namespace {

constexpr int kPrompts = 6, kBlockSize = 16, kBlocks = 1024;

struct Lengths {
  const char* name;
  int prompt, output;
};

class BlockSharing : public testing::Test {
 protected:
  void SetUp() override {
    auto device = tensor::NewCpuDevice({.threads = 2});
    ASSERT_TRUE(device.ok());
    auto model = model::Model::Load(SourcePath("models/demo"), **device, {});
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    options_.max_model_len = (*model)->spec().max_position;
    options_.num_blocks = kBlocks;
    options_.prefix_caching = false;
    options_.eos_token_ids = (*model)->generation_config().eos;
    bos_ = (*model)->generation_config().eos.front();
    auto runner = stage::StageRunner::Create(
        std::move(*device), std::move(*model),
        {.num_blocks = kBlocks, .eos_token_ids = options_.eos_token_ids});
    ASSERT_TRUE(runner.ok()) << runner.status().ToString();
    runner_ = std::move(*runner);
    scheduler_ = std::move(sched::Scheduler::Create(options_)).value();
  }

  std::vector<TokenId> Write(uint64_t seed, int tokens) {
    SamplingParams params{.max_tokens = tokens, .ignore_eos = true};
    EXPECT_TRUE(scheduler_->Add(RequestOf({bos_}, params, seed), Time{}).ok());
    std::vector<TokenId> text;
    stage::RunAlone(*scheduler_, *runner_, [&](const RequestOutput& output) {
      text.insert(text.end(), output.tokens.begin(), output.tokens.end());
    });
    return text;
  }

  sched::NewRequest RequestOf(std::vector<TokenId> prompt, const SamplingParams& params,
                              uint64_t seed) {
    sched::NewRequest request{.id = RequestId(next_id_++)};
    request.prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompt));
    request.params = std::make_shared<const SamplingParams>(params);
    request.seed = seed;
    return request;
  }

  // The saved share, averaged over steps and prompts.
  double Saved(const Lengths& lengths, int n, bool beams) {
    SamplingParams params{.n = n, .max_tokens = lengths.output, .ignore_eos = true};
    params.beam_search = beams;
    if (beams) params.temperature = 0;
    double used = 0, apart = 0;
    for (uint64_t seed = 0; seed < kPrompts; ++seed) {
      sched::NewRequest request = RequestOf(Write(seed, lengths.prompt), params, seed);
      const RequestId id = request.id;
      EXPECT_TRUE(scheduler_->Add(std::move(request), Time{}).ok());
      std::vector<RequestOutput> outputs;
      while (const StepPlan* plan = scheduler_->Schedule(Time{})) {
        scheduler_->Commit(runner_->Run(*plan), Time{}, outputs);
        const auto info = scheduler_->Inspect(id, Time{});
        if (!info || info->computed_tokens < n * lengths.prompt) continue;
        used += info->blocks;
        apart += n * ((info->computed_tokens / n + kBlockSize - 1) / kBlockSize);
      }
      scheduler_->CheckIntegrity();
    }
    return 1 - used / apart;
  }

  sched::SchedulerOptions options_;
  std::unique_ptr<stage::StageRunner> runner_;
  std::unique_ptr<sched::Scheduler> scheduler_;
  TokenId bos_ = 0;
  uint64_t next_id_ = 1;
};

TEST_F(BlockSharing, SavesMemoryAsInFigure15) {
  // Alpaca: 19.31 and 58.45 tokens on average (table in section 6.1); ShareGPT: 161.31 and 337.99.
  for (const Lengths& lengths : {Lengths{"Alpaca", 19, 58}, Lengths{"ShareGPT", 161, 338}}) {
    for (const int n : {2, 4, 6}) {
      const double parallel = Saved(lengths, n, false), beams = Saved(lengths, n, true);
      std::printf("%s, %d sequences: parallel sampling saves %.1f %%, beam search %.1f %%\n",
                  lengths.name, n, 100 * parallel, 100 * beams);
      EXPECT_GT(parallel, 0.03);
      EXPECT_GT(beams, 0.30);
      EXPECT_GT(beams, parallel);
    }
  }
}

}  // namespace
}  // namespace millrace
