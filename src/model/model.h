// Model: the weights of layers [lo, hi) on a device, and the forward pass over them.
//
// The input is Orca's flattened mixed batch (OSDI'22 section 3.2): the rows of all sequences, both
// prefill chunks and decodes, are concatenated. Everything but attention works on rows; attention
// is one fused call over the paged cache.
//
//   model->Embed(batch);                  // stage 0 only
// rows pass through layers [lo, hi)
// last stage only; the caller chooses the rows
//
// Load allocates buffers for `max_batched_tokens` rows; a step allocates nothing. The hidden rows
// stay in the model between the calls. Owned by a stage and used by one thread, the
// device's. The device outlives the model.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "core/model_spec.h"
#include "core/worker_messages.h"
#include "model/architecture.h"
#include "model/config.h"
#include "model/layers.h"
#include "model/rope.h"
#include "model/weight_files.h"
#include "net/collective.h"
#include "tensor/device.h"

namespace millrace::model {

struct LoadOptions {
  std::optional<LayerRange> layers;  // default: all
  // For more than one rank: which part of each layer this model holds, and how the ranks' products
  // are added. The collective has this rank and size, and outlives the model.
  TensorRank tensor_rank;
  net::Collective* collective = nullptr;
  int max_batched_tokens = 2048;     // rows of a batch
  int max_logits_rows = 64;          // rows of one Head call; the caller loops for more
  std::optional<int> max_model_len;  // positions to support; default: the model's max_position
  // Called from the loading thread after every tensor, in bytes of weights.
  std::function<void(int64_t done, int64_t total)> progress;
};

class Model {
 public:
  // kNotFound, kInvalidArgument, kDataLoss, kUnimplemented: an error in the folder; one line with
  // the file and the rule. kResourceExhausted: does not fit in memory; reported with the numbers
  // before any weights are read.
  static Result<std::unique_ptr<Model>> Load(const std::string& folder, tensor::Device& device,
                                             const LoadOptions& options = {});

  const ModelSpec& spec() const { return decoder_->dims().spec; }
  const GenerationConfig& generation_config() const { return generation_; }
  LayerRange layers() const { return layers_; }
  int max_batched_tokens() const { return max_rows_; }
  int max_logits_rows() const { return max_logits_rows_; }
  int max_model_len() const { return max_model_len_; }
  int64_t loaded_bytes() const { return loaded_bytes_; }  // of this rank, as stored in the files
  TensorRank tensor_rank() const { return rank_; }
  // The whole model's KV heads that this rank holds; neighbouring ranks share one if there are
  // fewer heads than ranks.
  std::pair<int, int> kv_heads() const;
  // Whether this model computes logits: rank 0 of the last stage does.
  bool has_head() const { return layers_.end == spec().num_layers && rank_.rank == 0; }

  // The argument for Device::NewKvPool for this stage's layers and this rank's heads.
  tensor::KvShape KvShapeFor(int block_size, int num_blocks) const;

  // Sets the hidden rows from token ids. REQUIRES: layers().begin == 0; ids below
  // spec().vocab_size.
  void Embed(const Batch& batch);
  // Runs one layer, or all of layers(), over the batch's hidden rows in place. Fails only if the
  // ranks' collective fails; the hidden rows are then undefined.
  Status Layer(int index, const Batch& batch);
  Status Layers(const Batch& batch);
  // The hidden rows, between stages: [rows, hidden_size].
  tensor::Rows Hidden(int rows);
  // Final norm and vocabulary projection of hidden rows `rows`: [rows.size(), vocab_size], valid
  // until the next call. REQUIRES: has_head(); rows.size() <= max_logits_rows().
  tensor::Rows Head(std::span<const int32_t> rows);

  // The same ranks' next collective, after one failed. REQUIRES: as in LoadOptions.
  void UseCollective(net::Collective& collective);

 private:
  Model(tensor::Device& device, std::unique_ptr<Decoder> decoder, WeightFiles files)
      : device_(device), decoder_(std::move(decoder)), files_(std::move(files)) {}
  Status LoadWeights(const LoadOptions& options);
  Status NewWorkspace();
  Pass NewPass(int layer, const Batch& batch);

  tensor::Device& device_;
  std::unique_ptr<Decoder> decoder_;
  WeightFiles files_;  // stays mapped: embedding tables are read in place
  GenerationConfig generation_;
  LayerRange layers_;
  TensorRank rank_;
  std::unique_ptr<RankSum> sum_;  // with more ranks than one
  int max_rows_ = 0, max_logits_rows_ = 0, max_model_len_ = 0;
  int64_t loaded_bytes_ = 0;
  RopeTables rope_;
  Workspace work_;
};

}  // namespace millrace::model
