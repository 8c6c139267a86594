// LocalExecutor: runs steps on a model and a device in this process, one at a time: a stage with
// one pipeline through all of its layers.
//
// It decides nothing: block tables come from the plans as deltas, tokens are sampled according to
// their parameters. Owns the stage, and through it model, pools and device. One thread, the
// engine's.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/executor.h"
#include "engine/model_stage.h"
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
  // kResourceExhausted when the pools do not fit in memory. The model holds every layer and is on
  // `device`.
  static Result<std::unique_ptr<LocalExecutor>> Create(std::unique_ptr<tensor::Device> device,
                                                       std::unique_ptr<model::Model> model,
                                                       const LocalExecutorOptions& options);

  const ExecutorTraits& traits() const override { return traits_; }
  void Submit(const StepPlan& plan) override;
  const StepResult& Wait() override;

  // The part of the last step's time spent in the model's layers (ModelStage::layers_time).
  Duration layers_time() const { return stage_->layers_time(); }

  const model::Model& model() const { return stage_->model(); }
  const tensor::Device& device() const { return stage_->device(); }

  // Ends the pipeline and this executor, so that the caller can run the stage.
  std::unique_ptr<ModelStage> TakeStage();

 private:
  LocalExecutor(std::unique_ptr<tensor::Device> device, std::unique_ptr<model::Model> model)
      : stage_(std::make_unique<ModelStage>(std::move(device), std::move(model))) {}

  std::unique_ptr<ModelStage> stage_;
  ExecutorTraits traits_;
  StagePart part_;
  bool in_flight_ = false;
};

}  // namespace millrace::engine
