#include "stage/model_stage.h"

#include <fmt/format.h>

#include <algorithm>

namespace millrace::stage {

size_t KvAheadBytes(const model::Model& model, std::optional<int64_t> asked) {
  if (asked) return static_cast<size_t>(*asked);
  const tensor::KvShape shape = model.KvShapeFor(tensor::kKvBlockUnit, 1);
  const tensor::PoolKvBox token{0, shape.num_layers, 0, shape.num_kv_heads, 0, 1};
  const size_t longest = static_cast<size_t>(model.max_model_len()) * token.Bytes(shape);
  return std::min(kKvAheadSequences * longest, kKvAheadBytesMax);
}

ModelStage::ModelStage(std::unique_ptr<tensor::Device> device, std::unique_ptr<model::Model> model,
                       size_t kv_ahead_bytes)
    : device_(std::move(device)),
      model_(std::move(model)),
      sampling_(*model_, *device_),
      populator_(kv_ahead_bytes == 0 ? nullptr : std::make_unique<KvPopulator>(kv_ahead_bytes, [] {
        return ReadMemoryAvailable();
      })) {}

size_t ModelStage::row_bytes() const { return model_->Hidden(1).row_bytes(); }

std::pair<int, int> ModelStage::kv_heads() const { return model_->kv_heads(); }
int ModelStage::model_kv_heads() const { return model_->spec().num_kv_heads; }

StageLimits ModelStage::limits() const {
  return {.vocab_size = model_->spec().vocab_size,
          .max_model_len = model_->max_model_len(),
          .max_batched_tokens = model_->max_batched_tokens()};
}

Status ModelStage::OpenPipeline(PipelineId pipeline, const StagePipeline& options) {
  const LayerRange here = layers(), range = options.layers;
  if (range.size() < 1 || !here.Contains(range)) {
    return InvalidArgument(fmt::format("pipeline {}: layers [{}, {}) of a stage of [{}, {})",
                                       pipeline.value(), range.begin, range.end, here.begin,
                                       here.end));
  }
  if (options.first != (range.begin == 0) ||
      options.last != (range.end == model_->spec().num_layers)) {
    return InvalidArgument(
        fmt::format("pipeline {}: only the first layer takes tokens and only the last returns them",
                    pipeline.value()));
  }
  if (options.block_size < 1 || options.block_size % tensor::kKvBlockUnit != 0 ||
      options.num_blocks < 1 || options.num_host_blocks < 0) {
    return InvalidArgument(fmt::format(
        "pipeline {}: {} blocks of {} tokens; a block's tokens must be a multiple of {}",
        pipeline.value(), options.num_blocks, options.block_size, tensor::kKvBlockUnit));
  }
  for (TokenId token : options.eos_token_ids) {
    if (token >= 0 && token < model_->spec().vocab_size) continue;
    return InvalidArgument(fmt::format("pipeline {}: EOS token {} is outside the vocabulary of {}",
                                       pipeline.value(), token, model_->spec().vocab_size));
  }
  if (pipelines_.contains(pipeline)) {
    return FailedPrecondition(fmt::format("pipeline {} is already open", pipeline.value()));
  }
  MR_ASSIGN_OR_RETURN(auto opened,
                      ModelPipeline::Open(pipeline, options, *model_, *device_, populator_.get()));
  const MutexLock lock(pipelines_mutex_);
  pipelines_.emplace(pipeline, std::move(opened));
  return OkStatus();
}

void ModelStage::ClosePipeline(PipelineId pipeline) {
  decltype(pipelines_)::node_type closed;  // destroyed without the lock
  const MutexLock lock(pipelines_mutex_);
  closed = pipelines_.extract(pipeline);
}

void ModelStage::ReturnBlocks(PipelineId pipeline, std::span<const BlockIndex> blocks) {
  std::shared_ptr<tensor::KvPool> pool;
  {
    const MutexLock lock(pipelines_mutex_);
    const auto found = pipelines_.find(pipeline);
    if (found == pipelines_.end()) return;
    pool = found->second->kv();
  }
  pool->ReturnMemory(blocks);
}

Status ModelStage::Run(std::span<StagePart> parts) {
  const KvPopulator::Use use(populator_.get());
  layers_time_ = {};
  Collect(parts);
  const std::span<Member> all(members_);
  for (size_t first = 0; first < all.size();) {
    size_t end = first;
    for (int rows = 0; end < all.size(); ++end) {
      rows += all[end].pipeline->rows();
      if (end > first && rows > model_->max_batched_tokens()) break;
    }
    if (Status ran = RunBatch(all.subspan(first, end - first)); !ran.ok()) {
      sampling_.Drop();
      return ran;
    }
    first = end;
  }
  return OkStatus();
}

// Orders the parts that can run by the middle of their layers, so that parts that leave early are
// on one side of those that stay, and parts that enter late on the other. If no range is strictly
// inside another, all parts at a layer are adjacent.
void ModelStage::Collect(std::span<StagePart> parts) {
  members_.clear();
  for (StagePart& part : parts) {
    part.output.clear();
    part.inner_activations.clear();
    part.result.id = part.plan->id;
    part.result.sequences.clear();
    part.result.error = OkStatus();
    const auto found = pipelines_.find(part.pipeline);
    if (found == pipelines_.end()) {
      part.result.error = NotFound(fmt::format("pipeline {} is not open", part.pipeline.value()));
      continue;
    }
    part.result.error = found->second->Begin(part, row_bytes());
    if (part.result.error.ok() && found->second->rows() > 0) {
      members_.push_back({&part, found->second.get()});
    }
  }
  std::sort(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
    const int middle_a = a.layers().begin + a.layers().end;
    const int middle_b = b.layers().begin + b.layers().end;
    return middle_a != middle_b ? middle_a < middle_b : a.part < b.part;
  });
}

Status ModelStage::RunBatch(std::span<Member> batch) {
  Place(batch);
  LayerRange at{batch[0].layers().begin, batch[0].layers().end};
  int end = at.end;
  for (const Member& member : batch) {
    at.begin = std::min(at.begin, member.layers().begin);
    end = std::max(end, member.layers().end);
  }
  while (at.begin < end) {
    // Up to the next layer at which a part enters or leaves, or whose activations are requested.
    at.end = end;
    const auto stop_at = [&](int edge) {
      if (edge > at.begin) at.end = std::min(at.end, edge);
    };
    for (const Member& member : batch) {
      stop_at(member.layers().begin);
      stop_at(member.layers().end);
      std::ranges::for_each(member.pipeline->options().cache_activations_at, stop_at);
    }
    Enter(batch, at.begin);
    FormGroups(batch, at.begin);
    MR_RETURN_IF_ERROR(RunLayers(at));
    Leave(batch, at.end);
    at.begin = at.end;
  }
  sampling_.Run();
  return OkStatus();
}

// Gives the parts their rows and hands all of them over to the model as one step.
void ModelStage::Place(std::span<Member> batch) {
  tokens_.clear();
  positions_.clear();
  parts_.clear();
  for (Member& member : batch) {
    member.first_row = static_cast<int>(positions_.size());
    const auto positions = member.pipeline->positions();
    for (const SequenceView& sequence : member.part->sequences) {
      tokens_.insert(tokens_.end(), sequence.tokens.begin(), sequence.tokens.end());
    }
    positions_.insert(positions_.end(), positions.begin(), positions.end());
    parts_.push_back(member.pipeline->PartAt(member.first_row));
    if (member.part->TokensOut(member.pipeline->options()) && model_->has_head()) {
      sampling_.Add(*member.part, *member.pipeline, member.first_row);
    }
  }
  model_->Begin({tokens_, positions_, parts_, sampling_.Outputs()});
}

void ModelStage::Enter(std::span<const Member> batch, int layer) {
  const tensor::Rows hidden = model_->Hidden(model_->max_batched_tokens());
  int embed_first = 0, embed_rows = 0;  // adjacent parts are embedded together
  const auto embed = [&] {
    if (embed_rows > 0) model_->Embed({embed_first, embed_rows});
    embed_rows = 0;
  };
  for (const Member& member : batch) {
    if (member.layers().begin != layer) continue;
    const int rows = member.pipeline->rows();
    if (!member.part->TokensIn(member.pipeline->options())) {
      device_->Write(member.part->input.data(), hidden.Slice(member.first_row, rows));
      continue;
    }
    if (embed_first + embed_rows != member.first_row) embed();
    if (embed_rows == 0) embed_first = member.first_row;
    embed_rows += rows;
  }
  embed();
}

void ModelStage::Leave(std::span<const Member> batch, int layer) {
  for (const Member& member : batch) {
    StagePart& part = *member.part;
    const StagePipeline& pipeline = member.pipeline->options();
    const LayerRange ran = member.layers();
    if (ran.begin < layer && layer < ran.end) {
      if (std::ranges::find(pipeline.cache_activations_at, layer) ==
          pipeline.cache_activations_at.end())
        continue;
      ReadRows(member, part.inner_activations.emplace_back(EnteringActivations{layer, {}}).rows);
    } else if (ran.end == layer && !part.TokensOut(pipeline)) {
      ReadRows(member, part.output);
    }
  }
}

void ModelStage::ReadRows(const Member& member, std::vector<std::byte>& rows) {
  const int count = member.pipeline->rows();
  rows.resize(static_cast<size_t>(count) * row_bytes());
  device_->Read(model_->Hidden(model_->max_batched_tokens()).Slice(member.first_row, count),
                rows.data());
}

void ModelStage::FormGroups(std::span<const Member> batch, int layer) {
  groups_.clear();
  for (const Member& member : batch) {
    if (!member.layers().Contains(layer)) continue;
    if (groups_.empty() || groups_.back().first + groups_.back().count != member.first_row) {
      groups_.push_back({member.first_row, 0});
    }
    groups_.back().count += member.pipeline->rows();
  }
}

Status ModelStage::RunLayers(LayerRange layers) {
  const SteadyClock clock;
  const Time begin = clock.Now();
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    for (const tensor::RowRange& group : groups_) {
      MR_RETURN_IF_ERROR(model_->Layer(layer, group));
    }
  }
  layers_time_ = layers_time_ + (clock.Now() - begin);
  return OkStatus();
}

size_t ModelStage::KvBytes(const KvBox& box) const {
  return tensor::PoolKvBox{.end_layer = box.layers.size(),
                           .end_head = box.end_head - box.first_head,
                           .end_token = box.end_token - box.first_token}
      .Bytes(model_->KvShapeFor(tensor::kKvBlockUnit, 1));
}

Result<ModelStage::PipelinePool> ModelStage::PoolOf(PipelineId pipeline, const KvBox& box,
                                                    std::span<const BlockIndex> blocks) const {
  PipelinePool pool;
  LayerRange layers;
  {
    const MutexLock lock(pipelines_mutex_);
    const auto found = pipelines_.find(pipeline);
    if (found == pipelines_.end()) {
      return NotFound(fmt::format("pipeline {} is not open", pipeline.value()));
    }
    pool.kv = found->second->kv();
    pool.populated = found->second->populated();
    layers = found->second->options().layers;
  }
  const auto [first_head, end_head] = kv_heads();
  if (!layers.Contains(box.layers) || box.layers.size() < 0 || box.first_head < first_head ||
      box.end_head > end_head || box.first_head > box.end_head || box.first_token < 0 ||
      box.first_token > box.end_token) {
    return InvalidArgument(
        fmt::format("pipeline {}: the box is outside its layers and heads", pipeline.value()));
  }
  const tensor::KvShape& shape = pool.kv->shape();
  if (std::ssize(blocks) * int64_t{shape.block_size} < box.end_token) {
    return InvalidArgument(fmt::format("pipeline {}: {} blocks are not enough for {} tokens",
                                       pipeline.value(), blocks.size(), box.end_token));
  }
  for (BlockIndex block : blocks) {
    if (block >= 0 && block < shape.num_blocks) continue;
    return InvalidArgument(fmt::format("pipeline {}: block {} does not exist in a pool of {}",
                                       pipeline.value(), block, shape.num_blocks));
  }
  pool.box = {box.layers.begin - layers.begin,
              box.layers.end - layers.begin,
              box.first_head - first_head,
              box.end_head - first_head,
              box.first_token,
              box.end_token};
  return pool;
}

Status ModelStage::ReadKv(PipelineId pipeline, const KvBox& box, std::span<const BlockIndex> blocks,
                          std::span<std::byte> out) const {
  const KvPopulator::Use use(populator_.get());
  MR_ASSIGN_OR_RETURN(const PipelinePool pool, PoolOf(pipeline, box, blocks));
  device_->ExportKv(*pool.kv, pool.box, blocks, out);
  return OkStatus();
}

Status ModelStage::WriteKv(PipelineId pipeline, const KvBox& box,
                           std::span<const BlockIndex> blocks, std::span<const std::byte> in) {
  const KvPopulator::Use use(populator_.get());
  MR_ASSIGN_OR_RETURN(const PipelinePool pool, PoolOf(pipeline, box, blocks));
  if (pool.populated && !blocks.empty()) pool.populated->Uses(std::ranges::max(blocks));
  device_->ImportKv(*pool.kv, pool.box, blocks, in);
  return OkStatus();
}

}  // namespace millrace::stage
