// WrappedStage: a stage that is another one, but for what a subclass does around its steps: to time
// them, or to see what runs. Shares the other; threads as a stage.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "engine/stage.h"

namespace millrace::engine {

class WrappedStage : public Stage {
 public:
  explicit WrappedStage(std::shared_ptr<Stage> inner) : inner_(std::move(inner)) {}

  LayerRange layers() const override { return inner_->layers(); }
  size_t row_bytes() const override { return inner_->row_bytes(); }
  std::pair<int, int> kv_heads() const override { return inner_->kv_heads(); }
  int model_kv_heads() const override { return inner_->model_kv_heads(); }
  Status OpenLane(LaneId lane, const StageLane& options) override {
    return inner_->OpenLane(lane, options);
  }
  void CloseLane(LaneId lane) override { inner_->CloseLane(lane); }
  Status Run(std::span<StagePart> parts) override { return inner_->Run(parts); }
  size_t KvBytes(const KvBox& box) const override { return inner_->KvBytes(box); }
  Status ReadKv(LaneId lane, const KvBox& box, std::span<const BlockIndex> blocks,
                std::span<std::byte> out) const override {
    return inner_->ReadKv(lane, box, blocks, out);
  }
  Status WriteKv(LaneId lane, const KvBox& box, std::span<const BlockIndex> blocks,
                 std::span<const std::byte> in) override {
    return inner_->WriteKv(lane, box, blocks, in);
  }
  bool HoldsRows(LaneId lane, int layer, std::span<const BlockIndex> blocks, int first_token,
                 int end_token) const override {
    return inner_->HoldsRows(lane, layer, blocks, first_token, end_token);
  }
  const std::shared_ptr<Stage>& inner() const { return inner_; }

 private:
  const std::shared_ptr<Stage> inner_;
};

}  // namespace millrace::engine
