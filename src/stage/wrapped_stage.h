// WrappedStage: forwards to another stage; a subclass adds work around its steps, to time them or
// to observe what runs. Shares ownership of the other; threads as for a stage.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "stage/stage.h"

namespace millrace::stage {

class WrappedStage : public Stage {
 public:
  explicit WrappedStage(std::shared_ptr<Stage> inner) : inner_(std::move(inner)) {}

  LayerRange layers() const override { return inner_->layers(); }
  size_t row_bytes() const override { return inner_->row_bytes(); }
  std::pair<int, int> kv_heads() const override { return inner_->kv_heads(); }
  int model_kv_heads() const override { return inner_->model_kv_heads(); }
  StageLimits limits() const override { return inner_->limits(); }
  Status OpenPipeline(PipelineId pipeline, const StagePipeline& options) override {
    return inner_->OpenPipeline(pipeline, options);
  }
  void ClosePipeline(PipelineId pipeline) override { inner_->ClosePipeline(pipeline); }
  void ReturnBlocks(PipelineId pipeline, std::span<const BlockIndex> blocks) override {
    inner_->ReturnBlocks(pipeline, blocks);
  }
  Status Run(std::span<StagePart> parts) override { return inner_->Run(parts); }
  size_t KvBytes(const KvBox& box) const override { return inner_->KvBytes(box); }
  Status ReadKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                std::span<std::byte> out) const override {
    return inner_->ReadKv(pipeline, box, blocks, out);
  }
  Status WriteKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                 std::span<const std::byte> in) override {
    return inner_->WriteKv(pipeline, box, blocks, in);
  }
  Status ReadActivations(PipelineId pipeline, const ActivationRange& range,
                         std::span<const BlockIndex> blocks,
                         std::span<std::byte> out) const override {
    return inner_->ReadActivations(pipeline, range, blocks, out);
  }
  Status WriteActivations(PipelineId pipeline, const ActivationRange& range,
                          std::span<const BlockIndex> blocks,
                          std::span<const std::byte> in) override {
    return inner_->WriteActivations(pipeline, range, blocks, in);
  }
  bool HoldsActivations(PipelineId pipeline, const ActivationRange& range,
                        std::span<const BlockIndex> blocks) const override {
    return inner_->HoldsActivations(pipeline, range, blocks);
  }
  const std::shared_ptr<Stage>& inner() const { return inner_; }

 private:
  const std::shared_ptr<Stage> inner_;
};

}  // namespace millrace::stage
