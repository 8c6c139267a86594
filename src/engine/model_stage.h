// ModelStage: a Stage that is a real model: layers [begin, end) of it on one device.
//
// A batch is walked layer by layer. At each layer the rows of all parts that are there run
// together, whatever lane they belong to; only attention goes to each lane's own pool. Parts are
// placed so that those rows lie side by side where the lanes' ranges allow it; where they do not,
// the layer runs once for each group that does. A row's bits depend neither on its place nor on its
// company (tensor/device.h), so merging changes none. A batch of more rows than the model takes is
// run in several, part by part.
//
// A tensor-parallel rank runs the same batches in the same order as the others of its stage; rank 0
// of the last stage alone makes tokens, and the other ranks' results name no sequences. When the
// ranks' collective fails, Run does, and every later one until there is a new collective.
//
// Owns device, model and lanes. Threads: stage.h.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/model_lane.h"
#include "engine/sampling_pass.h"
#include "engine/stage.h"
#include "model/model.h"
#include "tensor/device.h"

namespace millrace::engine {

class ModelStage : public Stage {
 public:
  // The model lives on `device`.
  ModelStage(std::unique_ptr<tensor::Device> device, std::unique_ptr<model::Model> model);

  LayerRange layers() const override { return model_->layers(); }
  size_t row_bytes() const override;
  std::pair<int, int> kv_heads() const override;
  int model_kv_heads() const override;
  Status OpenLane(LaneId lane, const StageLane& options) override;
  void CloseLane(LaneId lane) override;
  Status Run(std::span<StagePart> parts) override;
  size_t KvBytes(const KvBox& box) const override;
  Status ReadKv(LaneId lane, const KvBox& box, std::span<const BlockIndex> blocks,
                std::span<std::byte> out) const override;
  Status WriteKv(LaneId lane, const KvBox& box, std::span<const BlockIndex> blocks,
                 std::span<const std::byte> in) override;

  // A rank's next collective, after one that failed: a stage of ranks is made whole without loading
  // anything again. Not while it runs.
  void UseCollective(net::Collective& collective) { model_->UseCollective(collective); }

  // Of the last Run's time, the part in the model's layers. On a device that works behind the
  // caller's back it is the time to hand the work over.
  Duration layers_time() const { return layers_time_; }

  const model::Model& model() const { return *model_; }
  const tensor::Device& device() const { return *device_; }

 private:
  // A part of the batch being run.
  struct Member {
    StagePart* part = nullptr;
    ModelLane* lane = nullptr;
    int first_row = 0;
    LayerRange layers() const { return part->LayersOf(lane->options()); }
  };
  // Members whose rows lie side by side and are at the same layer.
  struct Group {
    int first_row = 0, rows = 0;
    size_t first_kv = 0, num_kv = 0;  // in kv_
  };
  // What a transfer needs of a lane; keeps the pool when the lane is closed meanwhile.
  struct LanePool {
    std::shared_ptr<tensor::KvPool> kv;
    tensor::KvBox box;
  };

  void Collect(std::span<StagePart> parts);
  Status RunBatch(std::span<Member> batch);
  void Place(std::span<Member> batch);
  void Enter(std::span<const Member> batch, int layer);
  void Leave(std::span<const Member> batch, int layer);
  void ReadRows(const Member& member, std::vector<std::byte>& rows);
  void FormGroups(std::span<const Member> batch, int layer);
  Status RunLayers(LayerRange layers);
  model::Batch Rows(int first_row, int rows) const;
  Result<LanePool> PoolOf(LaneId lane, const KvBox& box, std::span<const BlockIndex> blocks) const;

  const std::unique_ptr<tensor::Device> device_;  // outlives what lives on it: declared first
  const std::unique_ptr<model::Model> model_;
  SamplingPass sampling_;
  mutable std::mutex lanes_mutex_;  // for transfers: the map changes on the stage's thread only
  std::unordered_map<LaneId, std::unique_ptr<ModelLane>> lanes_;

  // Of the batch being run; kept for their memory.
  std::vector<Member> members_;
  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_;
  std::vector<Group> groups_;
  std::vector<model::BatchKv> kv_;
  Duration layers_time_;
};

}  // namespace millrace::engine
