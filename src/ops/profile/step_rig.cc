#include "ops/profile/step_rig.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/rng.h"

namespace millrace::ops {
namespace {

double ThreadCpuSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

int Blocks(int tokens, int block_size) { return (tokens + block_size - 1) / block_size; }

std::shared_ptr<const SamplingParams> SamplingAt(double temperature) {
  SamplingParams params;
  params.temperature = temperature;
  return std::make_shared<const SamplingParams>(params);
}

}  // namespace

StepRig::StepRig(std::unique_ptr<stage::StageRunner> runner, double temperature, const Clock& clock)
    : runner_(std::move(runner)), clock_(clock), sampling_(SamplingAt(temperature)) {}

int StepRig::BlocksFor(const ProfileLimits& limits, int block_size) {
  int blocks = 0;
  for (const int tokens : SlotTokens(limits)) blocks += Blocks(tokens, block_size);
  return blocks;
}

Result<std::unique_ptr<StepRig>> StepRig::Create(std::unique_ptr<stage::StageRunner> runner,
                                                 const ProfileLimits& limits, double temperature,
                                                 const Clock& clock) {
  std::unique_ptr<StepRig> rig(new StepRig(std::move(runner), temperature, clock));
  const stage::StageRunnerOptions& options = rig->runner_->options();
  const int vocab = rig->runner_->model().spec().vocab_size;
  MR_CHECK(BlocksFor(limits, options.block_size) <= options.num_blocks);
  MR_CHECK(limits.max_tokens <= rig->runner_->model().max_batched_tokens());
  BlockIndex next = 0;
  uint64_t seed = 0;
  for (const int tokens : SlotTokens(limits)) {
    Slot slot;
    for (int i = 0; i < Blocks(tokens, options.block_size); ++i) slot.blocks.push_back(next++);
    Rng rng(seed++);
    std::vector<TokenId> prompt(static_cast<size_t>(tokens));
    for (TokenId& token : prompt) token = static_cast<TokenId>(rng.Between(0, vocab - 1));
    slot.prompt = std::make_shared<const std::vector<TokenId>>(std::move(prompt));
    rig->slots_.push_back(std::move(slot));
  }
  MR_RETURN_IF_ERROR(rig->Fill(limits));
  return rig;
}

Status StepRig::Fill(const ProfileLimits& limits) {
  const size_t longest =
      static_cast<size_t>(std::max_element(slots_.begin(), slots_.end(),
                                           [](const Slot& a, const Slot& b) {
                                             return a.prompt->size() < b.prompt->size();
                                           }) -
                          slots_.begin());
  const auto tokens = static_cast<int>(slots_[longest].prompt->size());
  for (int start = 0; start < tokens; start += limits.max_tokens) {
    StepPlan plan;
    AddChunk({static_cast<int>(longest), start, std::min(limits.max_tokens, tokens - start)},
             LogitsWanted::kNone, plan);
    MR_RETURN_IF_ERROR(Submit(std::move(plan)).status());
  }
  // The copies need a step of their own, with one token that is computed anyway.
  StepPlan plan;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    for (size_t i = 0; slot != longest && i < slots_[slot].blocks.size(); ++i) {
      plan.copies.push_back({slots_[longest].blocks[i], slots_[slot].blocks[i]});
    }
  }
  AddChunk({static_cast<int>(longest), tokens - 1, 1}, LogitsWanted::kLast, plan);
  return Submit(std::move(plan)).status();
}

void StepRig::AddChunk(const ProfileChunk& chunk, LogitsWanted logits, StepPlan& plan) {
  Slot& slot = slots_[static_cast<size_t>(chunk.slot)];
  SequenceStep step;
  step.id = SequenceId(static_cast<uint64_t>(chunk.slot));
  step.start = chunk.start;
  step.num_tokens = chunk.count;
  step.first_token = static_cast<int32_t>(plan.tokens.size());
  step.first_new_block = static_cast<int32_t>(plan.blocks.size());
  step.logits = logits;
  if (slot.started) {
    step.keep_blocks = static_cast<int32_t>(slot.blocks.size());
  } else {
    slot.started = true;
    plan.started.push_back({step.id, sampling_, static_cast<uint64_t>(chunk.slot), slot.prompt});
    plan.blocks.insert(plan.blocks.end(), slot.blocks.begin(), slot.blocks.end());
    step.num_new_blocks = static_cast<int32_t>(slot.blocks.size());
  }
  const auto first = slot.prompt->begin() + chunk.start;
  plan.tokens.insert(plan.tokens.end(), first, first + chunk.count);
  plan.sequences.push_back(step);
}

Result<StepRig::Timing> StepRig::Run(const ProfileBatch& batch) {
  StepPlan plan;
  for (const ProfileChunk& chunk : batch.chunks) AddChunk(chunk, LogitsWanted::kLast, plan);
  return Submit(std::move(plan));
}

Result<StepRig::Timing> StepRig::Submit(StepPlan plan) {
  plan.id = StepId(++steps_);
  const double cpu_begin = ThreadCpuSeconds();
  const Time begin = clock_.Now();
  const StepResult& result = runner_->Run(plan);
  const double seconds = (clock_.Now() - begin).seconds();
  const double cpu_seconds = ThreadCpuSeconds() - cpu_begin;
  MR_RETURN_IF_ERROR(result.error);
  for (const SequenceResult& sequence : result.sequences) MR_RETURN_IF_ERROR(sequence.error);
  return Timing{seconds, runner_->layers_time().seconds(), cpu_seconds / seconds};
}

}  // namespace millrace::ops
