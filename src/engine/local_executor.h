// LocalExecutor: runs steps on a model and a device of this process, one at a time.
//
// It obeys: block tables come from the plans as deltas, tokens are sampled as their parameters say.
// Owns model, pools and device. One thread, the engine's.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/sampler.h"
#include "model/model.h"
#include "tensor/device.h"

namespace millrace::engine {

struct LocalExecutorOptions {
  int block_size = 16;
  int num_blocks = 0;
  int num_host_blocks = 0;
  int max_sequences = 128;
  std::vector<TokenId> eos_token_ids;
};

class LocalExecutor : public Executor {
 public:
  // kResourceExhausted when the pools do not fit in memory. The model holds every layer and lives
  // on `device`.
  static Result<std::unique_ptr<LocalExecutor>> Create(std::unique_ptr<tensor::Device> device,
                                                       std::unique_ptr<model::Model> model,
                                                       const LocalExecutorOptions& options);

  const ExecutorTraits& traits() const override { return traits_; }
  void Submit(const StepPlan& plan) override;
  const StepResult& Wait() override;

  // Of the last step's time, the part in the model's layers. On a device that works behind the
  // caller's back it is the time to hand the work over.
  Duration layers_time() const { return layers_time_; }

  const model::Model& model() const { return *model_; }
  const tensor::Device& device() const { return *device_; }

 private:
  struct Sequence {
    explicit Sequence(const SequenceStart& start) : sampling(start) {}
    SamplingState sampling;
    std::vector<BlockIndex> blocks;
  };
  // A row whose logits are wanted, and what for.
  struct LogitsRow {
    int32_t row = 0;              // in the batch
    size_t result = 0;            // in result_.sequences
    int position = 0;             // tokens up to and including this row's
    bool sample = false;          // choose the next token
    bool prompt_logprob = false;  // log-probability of the known next token
  };

  LocalExecutor() = default;
  void MoveBlocks(const StepPlan& plan);
  void BuildBatch(const StepPlan& plan);
  void WantLogits(const SequenceStep& step, const Sequence& sequence, int first_row, size_t result);
  void UseLogits();
  void UseRow(const LogitsRow& wanted, std::span<float> logits);

  std::unique_ptr<tensor::Device> device_;  // outlives what lives on it: declared first
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<tensor::KvPool> kv_;
  std::unique_ptr<tensor::KvPool> host_kv_;  // swap pool; null without one
  ExecutorTraits traits_;
  std::vector<TokenId> eos_token_ids_;

  std::unordered_map<SequenceId, Sequence> sequences_;
  Sampler sampler_;
  std::vector<int32_t> tokens_, positions_;
  std::vector<tensor::AttentionSpan> spans_;
  std::vector<LogitsRow> wanted_;
  std::vector<int32_t> wanted_rows_;
  std::vector<float> logits_;  // [max_logits_rows, vocab]
  StepResult result_;
  Duration layers_time_;
  bool in_flight_ = false;
};

}  // namespace millrace::engine
