#include "stage/stage_runner.h"

#include <utility>

namespace millrace::stage {
namespace {

constexpr PipelineId kOnlyPipeline{1};

}  // namespace

StageRunner::StageRunner(std::unique_ptr<tensor::Device> device,
                         std::unique_ptr<model::Model> model, StageRunnerOptions options)
    : options_(std::move(options)),
      stage_(std::make_unique<ModelStage>(std::move(device), std::move(model))) {
  part_.pipeline = kOnlyPipeline;
}

Result<std::unique_ptr<StageRunner>> StageRunner::Create(std::unique_ptr<tensor::Device> device,
                                                         std::unique_ptr<model::Model> model,
                                                         StageRunnerOptions options) {
  MR_CHECK((model->layers() == LayerRange{0, model->spec().num_layers}))
      << "the model must hold all layers";
  const StagePipeline pipeline{.layers = model->layers(),
                               .block_size = options.block_size,
                               .num_blocks = options.num_blocks,
                               .num_host_blocks = options.num_host_blocks,
                               .first = true,
                               .last = true,
                               .eos_token_ids = options.eos_token_ids,
                               .grammars = options.grammars};
  std::unique_ptr<StageRunner> runner(
      new StageRunner(std::move(device), std::move(model), std::move(options)));
  MR_RETURN_IF_ERROR(runner->stage_->OpenPipeline(kOnlyPipeline, pipeline));
  return runner;
}

const StepResult& StageRunner::Run(const StepPlan& plan) {
  part_.plan = &plan;
  part_.sequences = tables_.Advance(plan);
  const Status ran = stage_->Run({&part_, 1});
  if (!ran.ok()) part_.result.error = ran;
  part_.plan = nullptr;
  return part_.result;
}

std::unique_ptr<ModelStage> StageRunner::TakeStage() {
  stage_->ClosePipeline(kOnlyPipeline);
  return std::move(stage_);
}

}  // namespace millrace::stage
