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

WorkspaceSizes SizesFor(const Dims& dims, size_t rows, size_t logits_rows, bool first, bool last) {
  const ModelSpec& s = dims.spec;
  const int heads = s.num_heads * s.head_dim, kv = s.num_kv_heads * s.head_dim;
  const auto columns = [](int n) { return static_cast<size_t>(n); };
  WorkspaceSizes sizes{};
  sizes.hidden = rows * columns(s.hidden_size);
  sizes.normed = rows * columns(std::max(s.hidden_size, heads));
  sizes.qkv =
      rows * columns(std::max({heads + 2 * kv, s.hidden_size, first ? dims.embed_columns : 0}));
  sizes.mlp = std::min<size_t>(rows, kMlpRowsMax) * columns(dims.mlp_columns);
  sizes.gathered = last ? logits_rows * columns(std::max(s.hidden_size, dims.embed_columns)) : 0;
  sizes.logits = last ? logits_rows * columns(s.vocab_size) : 0;
  return sizes;
}

Status CheckOptions(const LoadOptions& options, const ModelSpec& spec) {
  if (options.max_batched_tokens < 1 || options.max_logits_rows < 1) {
    return InvalidArgument(
        fmt::format("max_batched_tokens {} and max_logits_rows {} must be positive",
                    options.max_batched_tokens, options.max_logits_rows));
  }
  if (options.max_model_len &&
      (*options.max_model_len < 1 || *options.max_model_len > spec.max_position)) {
    return InvalidArgument(
        fmt::format("max-model-len {} is outside [1, {}], what the model was made for",
                    *options.max_model_len, spec.max_position));
  }
  if (!options.layers) return OkStatus();
  const LayerRange range = *options.layers;
  if (range.first < 0 || range.last > spec.num_layers || range.first >= range.last) {
    return InvalidArgument(fmt::format("layers [{}, {}) are not within the model's [0, {})",
                                       range.first, range.last, spec.num_layers));
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
  model->max_rows_ = options.max_batched_tokens;
  model->max_logits_rows_ = options.max_logits_rows;
  model->max_model_len_ = options.max_model_len.value_or(spec.max_position);
  MR_RETURN_IF_ERROR(model->LoadWeights(options));
  return model;
}

Status Model::LoadWeights(const LoadOptions& options) {
  ModelSpec& spec = decoder_->mutable_spec();
  // The whole model is declared first, for the numbers of its spec and for errors in any layer;
  // what is loaded is declared last, so that the layers' members are those of this stage.
  WeightPlan whole(&files_);
  decoder_->Declare({0, spec.num_layers}, whole);
  MR_RETURN_IF_ERROR(whole.Resolve());
  spec.num_parameters = CountParameters(whole);
  spec.weight_bytes = whole.stored_bytes();
  spec.dtype = whole.dtype();
  WeightPlan plan(&files_);
  decoder_->Declare(layers_, plan);
  MR_RETURN_IF_ERROR(plan.Resolve());
  loaded_bytes_ = plan.stored_bytes();

  const Dims& dims = decoder_->dims();
  const size_t rope_bytes = dims.rope ? RopeTables::BytesFor(*dims.rope, max_model_len_) : 0;
  if (rope_bytes > kRopeTableBytesMax) {
    return InvalidArgument(
        fmt::format("{}: a table of rotations for {} positions takes {}, the limit is {}; "
                    "set a smaller --max-model-len",
                    files_.folder(), max_model_len_, BytesText(static_cast<int64_t>(rope_bytes)),
                    BytesText(static_cast<int64_t>(kRopeTableBytesMax))));
  }
  const WorkspaceSizes sizes =
      SizesFor(dims, static_cast<size_t>(max_rows_), static_cast<size_t>(max_logits_rows_),
               layers_.first == 0, layers_.last == spec.num_layers);
  MR_RETURN_IF_ERROR(CheckMemory(files_.folder(), loaded_bytes_,
                                 sizes.bytes() + static_cast<int64_t>(rope_bytes)));
  MR_RETURN_IF_ERROR(plan.Load(device_, options.progress));
  if (dims.rope) rope_ = RopeTables(*dims.rope, max_model_len_);
  return NewWorkspace();
}

Status Model::NewWorkspace() {
  const ModelSpec& spec = decoder_->dims().spec;
  const WorkspaceSizes sizes = SizesFor(decoder_->dims(), static_cast<size_t>(max_rows_),
                                        static_cast<size_t>(max_logits_rows_), layers_.first == 0,
                                        layers_.last == spec.num_layers);
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
  return {layers_.size(), spec().num_kv_heads, spec().head_dim,
          block_size,     num_blocks,          spec().dtype};
}

Rows Model::Hidden(int rows) { return work_.hidden->View(rows, spec().hidden_size); }

Pass Model::NewPass(const Batch& batch, tensor::KvPool* kv) {
  MR_CHECK(batch.rows() > 0 && batch.rows() <= max_rows_)
      << batch.rows() << " rows, room for " << max_rows_;
  MR_CHECK(batch.positions.size() == batch.tokens.size()) << "one position per token";
  return Pass{device_, work_, batch, kv, 0, rope_.view(), Hidden(batch.rows())};
}

void Model::Embed(const Batch& batch) {
  MR_CHECK(layers_.first == 0) << "only the first stage embeds";
  Pass pass = NewPass(batch, nullptr);
  decoder_->Embed(pass);
}

void Model::Layer(int index, const Batch& batch, tensor::KvPool& kv) {
  MR_CHECK(layers_.Contains(index)) << "layer " << index << " is not loaded";
  Pass pass = NewPass(batch, &kv);
  pass.kv_layer = index - layers_.first;
  decoder_->Layer(index, pass);
}

void Model::Layers(const Batch& batch, tensor::KvPool& kv) {
  for (int i = layers_.first; i < layers_.last; ++i) Layer(i, batch, kv);
}

Rows Model::Head(std::span<const int32_t> rows) {
  MR_CHECK(layers_.last == spec().num_layers) << "only the last stage has a head";
  const int n = static_cast<int>(rows.size());
  MR_CHECK(n > 0 && n <= max_logits_rows_) << n << " rows, room for " << max_logits_rows_;
  Rows gathered = work_.gathered->View(n, spec().hidden_size);
  Rows logits = work_.logits->View(n, spec().vocab_size);
  device_.GatherRows(Hidden(max_rows_), rows, gathered);
  decoder_->Head(device_, gathered, work_.final->View(n, spec().hidden_size), logits);
  return logits;
}

}  // namespace millrace::model
