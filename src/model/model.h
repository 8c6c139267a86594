// Model: the weights of layers [lo, hi) on a device, and the forward pass over them.
//
// The input is a mixed batch (tensor/step.h): the rows of all sequences, both prefill chunks and
// decodes, are concatenated. Everything but attention works on rows; attention is one fused call
// over the paged cache.
//
//   rows = model->Begin(step);   // once for a batch
//   model->Embed(rows);          // stage 0 only
//   model->Layers(rows);         // layers [lo, hi)
//   logits = model->Head(0, n);  // last stage only: of the first n of the step's outputs
//
// Load allocates buffers for `max_batched_tokens` rows; a step allocates nothing. The hidden rows
// stay in the model between the calls. Owned by a stage and used by one thread, the
// device's. The device outlives the model. Its weights are immutable and may be shared with other
// models (loaded_weight.h), also of other devices.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "core/model_spec.h"
#include "core/worker_messages.h"
#include "model/architecture.h"
#include "model/config.h"
#include "model/layers.h"
#include "model/loaded_weight.h"
#include "model/rope.h"
#include "model/weight_files.h"
#include "net/collective/collective.h"
#include "tensor/device.h"

namespace millrace::model {

struct LoadOptions {
  std::optional<LayerRange> layers;  // default: all
  // For more than one rank: which part of each layer this model holds, and how the ranks' products
  // are added. The collective has this rank and size, and outlives the model.
  TensorRank tensor_rank;
  net::Collective* collective = nullptr;
  int max_batched_tokens = 2048;  // rows of a batch
  // Weights of the same folder that this process has on devices of this kind. Those that the model
  // needs are shared and not read.
  LoadedWeights here = {};
  // What the load may take beside `here`; the device's free memory bounds it too.
  std::optional<MemoryAvailable> memory;
  // Rows of one Head call; the caller loops for more. Default: the device's limit.
  std::optional<int> max_logits_rows;
  std::optional<int> max_model_len;  // positions to support; default: the model's max_position
  // Called from the loading thread after every tensor that is read, in bytes of weights.
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
  const std::vector<std::string>& notes() const { return notes_; }  // as of WeightPlan
  LayerRange layers() const { return layers_; }
  int max_batched_tokens() const { return max_rows_; }
  int max_logits_rows() const { return max_logits_rows_; }
  int max_model_len() const { return max_model_len_; }
  int64_t loaded_bytes() const { return loaded_bytes_; }  // of this rank, as stored in the files
  int64_t read_bytes() const { return read_bytes_; }      // the part that was not there already
  const LoadedWeights& weights() const { return weights_; }
  TensorRank tensor_rank() const { return rank_; }
  // The whole model's KV heads that this rank holds; neighbouring ranks share one if there are
  // fewer heads than ranks.
  std::pair<int, int> kv_heads() const;
  // Whether this model computes logits: rank 0 of the last stage does.
  bool has_head() const { return layers_.end == spec().num_layers && rank_.rank == 0; }

  // The argument for Device::NewKvPool for this stage's layers and this rank's heads.
  tensor::KvShape KvShapeFor(int block_size, int num_blocks) const;

  // Hands the step over to the device; returns all of its rows. The step's row i is hidden row i.
  // REQUIRES: at most max_batched_tokens() rows; tokens below spec().vocab_size.
  tensor::RowRange Begin(const tensor::Step& step);
  // Sets hidden rows from their tokens. REQUIRES: layers().begin == 0.
  void Embed(tensor::RowRange at);
  // Runs one layer, or all of layers(), over hidden rows in place. Fails only if the ranks'
  // collective fails; the hidden rows are then undefined.
  Status Layer(int index, tensor::RowRange at);
  Status Layers(tensor::RowRange at);
  // The hidden rows, between stages: [rows, hidden_size].
  tensor::Rows Hidden(int rows);
  // Final norm and vocabulary projection of `count` of the step's outputs, from `first` on:
  // [count, vocab_size], valid until the next call. REQUIRES: has_head(); count <=
  // max_logits_rows().
  tensor::Rows Head(int first, int count);

  // What that projection multiplies for them, in f32: [count, spec().embedding_size], valid until
  // the next call. REQUIRES: as Head.
  tensor::Rows HeadInput(int first, int count);

  // The same ranks' next collective, after one failed. REQUIRES: as in LoadOptions.
  void UseCollective(net::Collective& collective);

 private:
  Model(tensor::Device& device, std::unique_ptr<Decoder> decoder)
      : device_(device), decoder_(std::move(decoder)) {}
  Status LoadWeights(const WeightFiles& files, const LoadOptions& options);
  struct WorkspaceSizes;
  WorkspaceSizes SizesOfWorkspace() const;
  Status NewWorkspace(const WorkspaceSizes& sizes);
  tensor::Rows Gather(int first, int count);
  Pass NewPass(int layer, tensor::RowRange at);

  tensor::Device& device_;
  std::unique_ptr<Decoder> decoder_;
  LoadedWeights weights_;  // the decoder's
  GenerationConfig generation_;
  std::vector<std::string> notes_;
  LayerRange layers_;
  TensorRank rank_;
  std::unique_ptr<RankSum> sum_;  // with more ranks than one
  int max_rows_ = 0, max_logits_rows_ = 0, max_model_len_ = 0;
  int64_t loaded_bytes_ = 0, read_bytes_ = 0;
  RopeTables angles_;
  std::unique_ptr<tensor::RopeTable> rope_;  // of angles_; null: positions are learned
  Workspace work_;
};

}  // namespace millrace::model
