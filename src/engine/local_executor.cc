#include "engine/local_executor.h"

namespace millrace::engine {
namespace {

constexpr PipelineId kOnlyPipeline{1};

}  // namespace

Result<std::unique_ptr<LocalExecutor>> LocalExecutor::Create(std::unique_ptr<tensor::Device> device,
                                                             std::unique_ptr<model::Model> model,
                                                             const LocalExecutorOptions& options) {
  const ModelSpec& spec = model->spec();
  MR_CHECK((model->layers() == LayerRange{0, spec.num_layers})) << "the model must hold all layers";
  ExecutorTraits traits;
  traits.block_size = options.block_size;
  traits.num_blocks = options.num_blocks;
  traits.num_host_blocks = options.num_host_blocks;
  traits.max_batched_tokens = model->max_batched_tokens();
  traits.max_sequences = options.max_sequences;
  traits.kv_bytes_per_block = spec.KvBytesPerToken() * options.block_size;
  const StagePipeline pipeline{.layers = model->layers(),
                               .block_size = options.block_size,
                               .num_blocks = options.num_blocks,
                               .num_host_blocks = options.num_host_blocks,
                               .first = true,
                               .last = true,
                               .eos_token_ids = options.eos_token_ids};
  std::unique_ptr<LocalExecutor> executor(new LocalExecutor(std::move(device), std::move(model)));
  MR_RETURN_IF_ERROR(executor->stage_->OpenPipeline(kOnlyPipeline, pipeline));
  executor->traits_ = traits;
  executor->part_.pipeline = kOnlyPipeline;
  return executor;
}

void LocalExecutor::Submit(const StepPlan& plan) {
  MR_CHECK(!in_flight_) << "a step is already in flight";
  in_flight_ = true;
  part_.plan = &plan;
  const Status ran = stage_->Run({&part_, 1});
  if (!ran.ok()) part_.result.error = ran;
  part_.plan = nullptr;
}

const StepResult& LocalExecutor::Wait() {
  MR_CHECK(in_flight_) << "no step to wait for";
  in_flight_ = false;
  return part_.result;
}

std::unique_ptr<ModelStage> LocalExecutor::TakeStage() {
  MR_CHECK(!in_flight_);
  stage_->ClosePipeline(kOnlyPipeline);
  return std::move(stage_);
}

}  // namespace millrace::engine
