#include "model/model.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "model/folder.h"
#include "model/weight_plan.h"

namespace millrace::model {
namespace {

using tensor::Rows;

void CheckCollective(const net::Collective* collective, TensorRank rank) {
  MR_CHECK(collective != nullptr && collective->rank() == rank.rank &&
           collective->size() == rank.size)
      << "rank " << rank.rank << " of " << rank.size;
}

Status CheckOptions(const LoadOptions& options, const ModelSpec& spec) {
  if (options.max_batched_tokens < 1 || options.max_logits_rows.value_or(1) < 1) {
    return InvalidArgument(
        fmt::format("max_batched_tokens {} and max_logits_rows {} must be positive",
                    options.max_batched_tokens, options.max_logits_rows.value_or(1)));
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

Status CheckMemory(const tensor::Device& device, const std::string& folder, int64_t weights,
                   int64_t rest, const std::optional<MemoryAvailable>& bound) {
  MemoryAvailable available = device.MemoryAvailable();
  if (bound && bound->bytes < available.bytes) available = *bound;
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

// Sizes of the workspace's buffers, in bytes. All of it is f32 so far.
struct Model::WorkspaceSizes {
  size_t hidden = 0, normed = 0, qkv = 0, mlp = 0, gathered = 0, logits = 0;
  int64_t bytes() const {
    return static_cast<int64_t>(hidden + normed + qkv + mlp + 2 * gathered + logits);
  }
};

Model::WorkspaceSizes Model::SizesOfWorkspace() const {
  const Dims& dims = decoder_->dims();
  const ModelSpec& s = dims.spec;
  const auto f32 = [](int rows, int columns) {
    return BytesOf(DType::kF32) * static_cast<size_t>(rows) * static_cast<size_t>(columns);
  };
  const int heads = ShareOf(s.num_heads, rank_).size() * s.head_dim;
  const int kv = ShareOf(s.num_kv_heads, rank_).size() * s.head_dim;
  const int embedded = layers_.begin == 0 ? dims.spec.embedding_size : 0;
  WorkspaceSizes sizes;
  sizes.hidden = f32(max_rows_, s.hidden_size);
  sizes.normed = f32(max_rows_, std::max(s.hidden_size, heads));
  sizes.qkv = f32(max_rows_, std::max({heads + 2 * kv, s.hidden_size, embedded}));
  sizes.mlp = f32(std::min(max_rows_, device_.Limits().mlp_rows), dims.mlp_columns / rank_.size);
  if (!has_head()) return sizes;
  sizes.gathered = f32(max_logits_rows_, std::max(s.hidden_size, dims.spec.embedding_size));
  sizes.logits = f32(max_logits_rows_, s.vocab_size);
  return sizes;
}

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
  std::unique_ptr<Model> model(new Model(device, std::move(decoder)));
  MR_ASSIGN_OR_RETURN(model->generation_, ReadGenerationConfig(folder, config, spec.vocab_size));
  model->layers_ = options.layers.value_or(LayerRange{0, spec.num_layers});
  model->rank_ = options.tensor_rank;
  model->max_rows_ = options.max_batched_tokens;
  model->max_logits_rows_ = options.max_logits_rows.value_or(device.Limits().logits_rows);
  model->max_model_len_ = options.max_model_len.value_or(spec.max_position);
  MR_RETURN_IF_ERROR(model->LoadWeights(files, options));
  return model;
}

Status Model::LoadWeights(const WeightFiles& files, const LoadOptions& options) {
  ModelSpec& spec = decoder_->mutable_spec();
  // First the whole model is declared, for the numbers of its spec and for errors in any layer. The
  // layers to load are declared last, so that the layers' members are those of this stage.
  WeightPlan whole(&files);
  decoder_->Declare({0, spec.num_layers}, whole);
  MR_RETURN_IF_ERROR(whole.Resolve());
  spec.num_parameters = CountParameters(whole);
  spec.weight_bytes = whole.stored_bytes();
  spec.dtype = whole.dtype();
  notes_ = whole.notes();
  if (rank_.size > 1) {
    MR_ASSIGN_OR_RETURN(sum_,
                        RankSum::New(*options.collective, device_, max_rows_, spec.hidden_size));
  }
  WeightPlan plan(&files, rank_, sum_.get());
  decoder_->Declare(layers_, plan);
  MR_RETURN_IF_ERROR(plan.Resolve());
  plan.Keep(options.here);
  loaded_bytes_ = plan.stored_bytes();
  read_bytes_ = plan.bytes_to_read();

  const Dims& dims = decoder_->dims();
  const size_t rope_bytes = dims.rope ? RopeTables::BytesFor(*dims.rope, max_model_len_) : 0;
  if (rope_bytes > kRopeTableBytesMax) {
    return InvalidArgument(
        fmt::format("{}: the rotary table for {} positions needs {}, the limit is {}; "
                    "set a smaller --max-model-len",
                    files.folder(), max_model_len_, BytesText(static_cast<int64_t>(rope_bytes)),
                    BytesText(static_cast<int64_t>(kRopeTableBytesMax))));
  }
  const WorkspaceSizes sizes = SizesOfWorkspace();
  MR_RETURN_IF_ERROR(CheckMemory(device_, files.folder(), read_bytes_,
                                 sizes.bytes() + static_cast<int64_t>(rope_bytes), options.memory));
  MR_ASSIGN_OR_RETURN(weights_, plan.Load(device_, options.progress));
  if (dims.rope) {
    angles_ = RopeTables(*dims.rope, max_model_len_);
    MR_ASSIGN_OR_RETURN(rope_, device_.NewRopeTable(angles_.view()));
  }
  return NewWorkspace(sizes);
}

Status Model::NewWorkspace(const WorkspaceSizes& sizes) {
  MR_ASSIGN_OR_RETURN(work_.hidden, device_.NewBuffer(sizes.hidden));
  MR_ASSIGN_OR_RETURN(work_.normed, device_.NewBuffer(sizes.normed));
  MR_ASSIGN_OR_RETURN(work_.qkv, device_.NewBuffer(sizes.qkv));
  MR_ASSIGN_OR_RETURN(work_.mlp, device_.NewBuffer(sizes.mlp));
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

Rows Model::Hidden(int rows) { return work_.hidden->View(rows, spec().hidden_size, DType::kF32); }

Pass Model::NewPass(int layer, tensor::RowRange at) {
  return {device_, work_, at, layer, rope_.get(), Hidden(max_rows_).Slice(at.first, at.count)};
}

tensor::RowRange Model::Begin(const tensor::Step& step) {
  MR_CHECK(step.rows() > 0 && step.rows() <= max_rows_)
      << step.rows() << " rows, room for " << max_rows_;
  device_.BeginStep(step);
  return {0, step.rows()};
}

void Model::Embed(tensor::RowRange at) {
  MR_CHECK(layers_.begin == 0) << "only the first stage embeds";
  Pass pass = NewPass(0, at);
  decoder_->Embed(pass);
}

Status Model::Layer(int index, tensor::RowRange at) {
  MR_CHECK(layers_.Contains(index)) << "layer " << index << " is not loaded";
  Pass pass = NewPass(index, at);
  decoder_->Layer(index, pass);
  return sum_ == nullptr ? OkStatus() : sum_->status();
}

Status Model::Layers(tensor::RowRange at) {
  for (int i = layers_.begin; i < layers_.end; ++i) MR_RETURN_IF_ERROR(Layer(i, at));
  return OkStatus();
}

void Model::UseCollective(net::Collective& collective) {
  CheckCollective(&collective, rank_);
  if (sum_ != nullptr) sum_->UseCollective(collective);
}

Rows Model::Gather(int first, int count) {
  MR_CHECK(has_head()) << "only rank 0 of the last stage has a head";
  MR_CHECK(count > 0 && count <= max_logits_rows_)
      << count << " rows, room for " << max_logits_rows_;
  Rows gathered = work_.gathered->View(count, spec().hidden_size);
  device_.GatherOutputs(Hidden(max_rows_), first, gathered);
  return gathered;
}

Rows Model::Head(int first, int count) {
  const Rows gathered = Gather(first, count);
  Rows logits = work_.logits->View(count, spec().vocab_size);
  decoder_->Head(device_, gathered, work_.final->View(count, spec().hidden_size), logits);
  return logits;
}

Rows Model::HeadInput(int first, int count) {
  const Rows gathered = Gather(first, count);
  return decoder_->HeadInput(device_, gathered, work_.final->View(count, spec().hidden_size));
}

}  // namespace millrace::model
