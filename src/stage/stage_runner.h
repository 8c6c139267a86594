// StageRunner: runs step plans on a whole model in this thread, one at a time: a stage with one
// pipeline through all of its layers. It is for measuring steps and for the answer that every
// cluster must give; a cluster's workers run stages themselves (cluster/worker/worker_host.h).
//
// Owns the stage, and through it model, pools and device. One thread.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "model/model.h"
#include "stage/model_stage.h"
#include "tensor/device.h"

namespace millrace::stage {

struct StageRunnerOptions {
  int block_size = 16;
  int num_blocks = 0;
  int num_host_blocks = 0;
  std::vector<TokenId> eos_token_ids;
  std::shared_ptr<GrammarSource> grammars = nullptr;  // StagePipeline::grammars
};

class StageRunner {
 public:
  // kResourceExhausted when the pools do not fit in memory. The model holds every layer and is on
  // `device`.
  static Result<std::unique_ptr<StageRunner>> Create(std::unique_ptr<tensor::Device> device,
                                                     std::unique_ptr<model::Model> model,
                                                     StageRunnerOptions options);

  // The result stays valid until the next call.
  const StepResult& Run(const StepPlan& plan);

  // The part of the last step's time spent in the model's layers (ModelStage::layers_time).
  Duration layers_time() const { return stage_->layers_time(); }

  const StageRunnerOptions& options() const { return options_; }
  const model::Model& model() const { return stage_->model(); }
  const tensor::Device& device() const { return stage_->device(); }

  // Ends the pipeline and this runner, so that the caller can use the stage.
  std::unique_ptr<ModelStage> TakeStage();

 private:
  StageRunner(std::unique_ptr<tensor::Device> device, std::unique_ptr<model::Model> model,
              StageRunnerOptions options);

  const StageRunnerOptions options_;
  std::unique_ptr<ModelStage> stage_;
  SequenceTables tables_;
  StagePart part_;
};

}  // namespace millrace::stage
