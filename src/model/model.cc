#include "model/model.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/clock.h"
#include "base/log.h"
#include "model/folder.h"
#include "model/host_memory.h"
#include "model/weight_plan.h"

namespace millrace::model {
namespace {

using tensor::Rows;

// Sizes of the workspace's buffers, in elements.
struct WorkspaceSizes {
  size_t hidden, normed, qkv, mlp, gathered, logits;
  int64_t bytes() const {
    return static_cast<int64_t>((hidden + normed + qkv + mlp + 2 * gathered + logits) *
                                sizeof(float));
  }
};

WorkspaceSizes SizesFor(const Dims& dims, TensorRank rank, size_t rows, size_t logits_rows,
                        bool first, bool last) {
  const ModelSpec& s = dims.spec;
  const int heads = ShareOf(s.num_heads, rank).size() * s.head_dim;
  const int kv = ShareOf(s.num_kv_heads, rank).size() * s.head_dim;
  const auto columns = [](int n) { return static_cast<size_t>(n); };
  WorkspaceSizes sizes{};
  sizes.hidden = rows * columns(s.hidden_size);
  sizes.normed = rows * columns(std::max(s.hidden_size, heads));
  sizes.qkv =
      rows * columns(std::max({heads + 2 * kv, s.hidden_size, first ? dims.embed_columns : 0}));
  sizes.mlp = std::min<size_t>(rows, kMlpRowsMax) * columns(dims.mlp_columns / rank.size);
  sizes.gathered = last ? logits_rows * columns(std::max(s.hidden_size, dims.embed_columns)) : 0;
  sizes.logits = last ? logits_rows * columns(s.vocab_size) : 0;
  return sizes;
}

void CheckCollective(const net::Collective* collective, TensorRank rank) {
  MR_CHECK(collective != nullptr && collective->rank() == rank.rank &&
           collective->size() == rank.size)
      << "rank " << rank.rank << " of " << rank.size;
}

Status CheckOptions(const LoadOptions& options, const ModelSpec& spec) {
  if (options.max_batched_tokens < 1 || options.max_logits_rows < 1) {
    return InvalidArgument(
        fmt::format("max_batched_tokens {} and max_logits_rows {} must be positive",
                    options.max_batched_tokens, options.max_logits_rows));
  }
  if (options.max_model_len &&
      (*options.max_model_len < 1 || *options.max_model_len > spec.max_position)) {
    return InvalidArgument(fmt::format("max-model-len {} is outside [1, {}], the model's range",
                                       *options.max_model_len, spec.max_position));
  }
  MR_RETURN_IF_ERROR(CheckSharding(spec, options.tensor_rank));
  if (options.tensor_rank.size > 1) CheckCollective(options.collective, options.tensor_rank);
  if (!options.layers) return OkStatus();
  const LayerRange range = *options.layers;
  if (range.begin < 0 || range.end > spec.num_layers || range.begin >= range.end) {
    return InvalidArgument(fmt::format("layers [{}, {}) are not within the model's [0, {})",
                                       range.begin, range.end, spec.num_layers));
  }
  return OkStatus();
}

Status CheckMemory(const std::string& folder, int64_t weights, int64_t rest) {
  const MemoryAvailable available = ReadMemoryAvailable();
  if (weights + rest <= available.bytes) return OkStatus();
  return ResourceExhausted(fmt::format(
      "{}: needs {} of memory ({} weights, {} working space, KV cache not counted), but only {} is "
      "available ({}); free memory, use a smaller or 16-bit model, or spread it over several "
      "workers",
      folder, BytesText(weights + rest), BytesText(weights), BytesText(rest),
      BytesText(available.bytes), available.source));
}

int64_t CountParameters(const WeightPlan& plan) {
  int64_t total = 0;
  for (const WeightNeed& need : plan.Needs()) total += need.elements();
  return total;
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Load(const std::string& folder, tensor::Device& device,
                                           const LoadOptions& options) {
  MR_ASSIGN_OR_RETURN(Json config, ReadConfig(folder));
  const std::string label = (std::filesystem::path(folder) / "config.json").string();
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Decoder> decoder, NewDecoder(config, label));
  MR_RETURN_IF_ERROR(CheckOptions(options, decoder->dims().spec));
  ConfigReader names(config, label);
  ModelSpec& spec = decoder->mutable_spec();
  const std::vector<std::string> architectures = names.Strings("architectures");
  spec.architecture = architectures.empty() ? names.String("model_type", "") : architectures[0];
  MR_ASSIGN_OR_RETURN(WeightFiles files, WeightFiles::Open(folder));
  std::unique_ptr<Model> model(new Model(device, std::move(decoder), std::move(files)));
  MR_ASSIGN_OR_RETURN(model->generation_, ReadGenerationConfig(folder, config, spec.vocab_size));
  model->layers_ = options.layers.value_or(LayerRange{0, spec.num_layers});
  model->rank_ = options.tensor_rank;
  model->max_rows_ = options.max_batched_tokens;
  model->max_logits_rows_ = options.max_logits_rows;
  model->max_model_len_ = options.max_model_len.value_or(spec.max_position);
  MR_RETURN_IF_ERROR(model->LoadWeights(options));
  return model;
}

Status Model::LoadWeights(const LoadOptions& options) {
  ModelSpec& spec = decoder_->mutable_spec();
  // First the whole model is declared, for the numbers of its spec and for errors in any layer. The
  // layers to load are declared last, so that the layers' members are those of this stage.
  WeightPlan whole(&files_);
  decoder_->Declare({0, spec.num_layers}, whole);
  MR_RETURN_IF_ERROR(whole.Resolve());
  spec.num_parameters = CountParameters(whole);
  spec.weight_bytes = whole.stored_bytes();
  spec.dtype = whole.dtype();
  if (rank_.size > 1) {
    MR_ASSIGN_OR_RETURN(sum_,
                        RankSum::New(*options.collective, device_, max_rows_, spec.hidden_size));
  }
  WeightPlan plan(&files_, rank_, sum_.get());
  decoder_->Declare(layers_, plan);
  MR_RETURN_IF_ERROR(plan.Resolve());
  loaded_bytes_ = plan.stored_bytes();

  const Dims& dims = decoder_->dims();
  const size_t rope_bytes = dims.rope ? RopeTables::BytesFor(*dims.rope, max_model_len_) : 0;
  if (rope_bytes > kRopeTableBytesMax) {
    return InvalidArgument(
        fmt::format("{}: the rotary table for {} positions needs {}, the limit is {}; "
                    "set a smaller --max-model-len",
                    files_.folder(), max_model_len_, BytesText(static_cast<int64_t>(rope_bytes)),
                    BytesText(static_cast<int64_t>(kRopeTableBytesMax))));
  }
  const WorkspaceSizes sizes =
      SizesFor(dims, rank_, static_cast<size_t>(max_rows_), static_cast<size_t>(max_logits_rows_),
               layers_.begin == 0, has_head());
  MR_RETURN_IF_ERROR(CheckMemory(files_.folder(), loaded_bytes_,
                                 sizes.bytes() + static_cast<int64_t>(rope_bytes)));
  MR_RETURN_IF_ERROR(plan.Load(device_, options.progress));
  if (dims.rope) rope_ = RopeTables(*dims.rope, max_model_len_);
  return NewWorkspace();
}

Status Model::NewWorkspace() {
  const WorkspaceSizes sizes =
      SizesFor(decoder_->dims(), rank_, static_cast<size_t>(max_rows_),
               static_cast<size_t>(max_logits_rows_), layers_.begin == 0, has_head());
  MR_ASSIGN_OR_RETURN(work_.hidden, device_.NewBuffer(sizes.hidden));
  MR_ASSIGN_OR_RETURN(work_.normed, device_.NewBuffer(sizes.normed));
  MR_ASSIGN_OR_RETURN(work_.qkv, device_.NewBuffer(sizes.qkv));
  MR_ASSIGN_OR_RETURN(work_.mlp, device_.NewBuffer(sizes.mlp));
  work_.ids.resize(static_cast<size_t>(max_rows_));
  if (sizes.logits == 0) return OkStatus();
  MR_ASSIGN_OR_RETURN(work_.gathered, device_.NewBuffer(sizes.gathered));
  MR_ASSIGN_OR_RETURN(work_.final, device_.NewBuffer(sizes.gathered));
  MR_ASSIGN_OR_RETURN(work_.logits, device_.NewBuffer(sizes.logits));
  return OkStatus();
}

tensor::KvShape Model::KvShapeFor(int block_size, int num_blocks) const {
  const int heads = ShareOf(spec().num_kv_heads, rank_).size();
  return {layers_.size(), heads, spec().head_dim, block_size, num_blocks, spec().dtype};
}

std::pair<int, int> Model::kv_heads() const {
  const Share share = ShareOf(spec().num_kv_heads, rank_);
  return {share.first, share.end};
}

Rows Model::Hidden(int rows) { return work_.hidden->View(rows, spec().hidden_size); }

Pass Model::NewPass(int layer, const Batch& batch) {
  MR_CHECK(batch.rows() > 0 && batch.first_row >= 0 && batch.first_row + batch.rows() <= max_rows_)
      << "rows [" << batch.first_row << ", " << batch.first_row + batch.rows() << "), room for "
      << max_rows_;
  return {device_, work_,        batch,
          layer,   rope_.view(), Hidden(max_rows_).Slice(batch.first_row, batch.rows())};
}

void Model::Embed(const Batch& batch) {
  MR_CHECK(layers_.begin == 0) << "only the first stage embeds";
  MR_CHECK(batch.tokens.size() == batch.positions.size()) << "one position per token";
  Pass pass = NewPass(0, batch);
  decoder_->Embed(pass);
}

Status Model::Layer(int index, const Batch& batch) {
  MR_CHECK(layers_.Contains(index)) << "layer " << index << " is not loaded";
  Pass pass = NewPass(index, batch);
  decoder_->Layer(index, pass);
  return sum_ == nullptr ? OkStatus() : sum_->status();
}

Status Model::Layers(const Batch& batch) {
  for (int i = layers_.begin; i < layers_.end; ++i) MR_RETURN_IF_ERROR(Layer(i, batch));
  return OkStatus();
}

void Model::UseCollective(net::Collective& collective) {
  CheckCollective(&collective, rank_);
  if (sum_ != nullptr) sum_->UseCollective(collective);
}

Rows Model::Head(std::span<const int32_t> rows) {
  MR_CHECK(has_head()) << "only rank 0 of the last stage has a head";
  const int n = static_cast<int>(rows.size());
  MR_CHECK(n > 0 && n <= max_logits_rows_) << n << " rows, room for " << max_logits_rows_;
  Rows gathered = work_.gathered->View(n, spec().hidden_size);
  Rows logits = work_.logits->View(n, spec().vocab_size);
  device_.GatherRows(Hidden(max_rows_), rows, gathered);
  decoder_->Head(device_, gathered, work_.final->View(n, spec().hidden_size), logits);
  return logits;
}

}  // namespace millrace::model
