#include "stage/activation_caching_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace millrace::stage {
namespace {

bool Restricted(const StagePart& part) {
  return std::ranges::any_of(part.sequences,
                             [](const SequenceView& s) { return s.only_layers.has_value(); });
}

// The last hop must return a result for every sequence of the step, whether it ran there or not.
void AnswerForAll(const StepPlan& asked, StepResult& result) {
  std::vector<SequenceResult> ran = std::exchange(result.sequences, {});
  auto next = ran.begin();
  for (const SequenceStep& s : asked.sequences) {
    if (next != ran.end() && next->id == s.id) {
      result.sequences.push_back(std::move(*next++));
    } else {
      result.sequences.push_back({.id = s.id});
    }
  }
}

}  // namespace

ActivationCachingStage::Pipeline::Pipeline(const StagePipeline& o, size_t row,
                                           ActivationBudget& activation_budget)
    : options(o), row_bytes(row), budget(activation_budget) {
  for (const int layer : o.cache_activations_at) kept[layer] = MakeActivationCache();
}

std::shared_ptr<ActivationCache> ActivationCachingStage::Pipeline::MakeActivationCache() {
  return std::make_shared<ActivationCache>(budget, row_bytes, options.block_size,
                                           options.num_blocks, options.num_host_blocks);
}

std::shared_ptr<ActivationCache> ActivationCachingStage::Pipeline::ActivationsAt(int layer) const {
  if (const auto always = kept.find(layer); always != kept.end()) return always->second;
  const MutexLock lock(mutex);
  const auto found = inner.find(layer);
  return found == inner.end() ? nullptr : found->second;
}

std::shared_ptr<ActivationCache> ActivationCachingStage::Pipeline::MakeActivationsAt(int layer) {
  if (kept.contains(layer) || layer <= options.layers.begin || layer >= options.layers.end) {
    return ActivationsAt(layer);
  }
  const MutexLock lock(mutex);
  std::shared_ptr<ActivationCache>& rows = inner[layer];
  if (!rows) rows = MakeActivationCache();
  return rows;
}

std::shared_ptr<ActivationCachingStage::Pipeline> ActivationCachingStage::Find(
    PipelineId pipeline) const {
  const MutexLock lock(mutex_);
  const auto found = pipelines_.find(pipeline);
  return found == pipelines_.end() ? nullptr : found->second;
}

Status ActivationCachingStage::OpenPipeline(PipelineId pipeline, const StagePipeline& options) {
  MR_RETURN_IF_ERROR(WrappedStage::OpenPipeline(pipeline, options));
  auto rows = std::make_shared<Pipeline>(options, row_bytes(), budget_);
  const MutexLock lock(mutex_);
  pipelines_[pipeline] = std::move(rows);
  return OkStatus();
}

void ActivationCachingStage::ClosePipeline(PipelineId pipeline) {
  WrappedStage::ClosePipeline(pipeline);
  std::shared_ptr<Pipeline> gone;  // destroyed without the lock, perhaps by a transfer that still
                                   // reads it
  const MutexLock lock(mutex_);
  if (auto node = pipelines_.extract(pipeline)) gone = std::move(node.mapped());
}

Status ActivationCachingStage::Run(std::span<StagePart> parts) {
  for (auto batch = Enter(parts); !batch.empty(); batch = Next()) {
    MR_RETURN_IF_ERROR(WrappedStage::Run(batch));
  }
  Leave(parts);
  return OkStatus();
}

std::span<StagePart> ActivationCachingStage::Enter(std::span<StagePart> parts) {
  parts_ = parts;
  given_.clear();
  splits_.clear();
  pass_ = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::shared_ptr<Pipeline> pipeline = Find(parts[i].pipeline);
    if (!pipeline) continue;  // the wrapped stage reports it
    MoveActivations(*pipeline, parts[i]);
    if (Restricted(parts[i])) {
      splits_.push_back(SplitPart(i, parts[i], std::move(pipeline)));
    }
  }
  if (splits_.empty()) return parts;
  for (const StagePart& part : parts) {
    given_.push_back({.pipeline = part.pipeline,
                      .plan = part.plan,
                      .sequences = part.sequences,
                      .input = part.input});
  }
  for (const Split& split : splits_) {
    given_[split.part].sequences = split.passes.front().sequences;
    given_[split.part].input = split.passes.front().input;
  }
  return given_;
}

// Runs some of the layers for the parts that need them, until no part needs more.
std::span<StagePart> ActivationCachingStage::Next() {
  if (splits_.empty()) return {};
  if (pass_ == 0) {
    for (size_t i = 0; i < given_.size(); ++i) {
      parts_[i].output = std::move(given_[i].output);
      parts_[i].result = std::move(given_[i].result);
      parts_[i].inner_activations = std::move(given_[i].inner_activations);
    }
    for (Split& split : splits_) {
      StagePart& part = parts_[split.part];
      split.passes.front().output = std::move(part.output);
      split.passes.front().inner_activations = std::move(part.inner_activations);
      if (!part.result.error.ok()) split.error = part.result.error;
    }
  } else {
    for (size_t i = 0; i < given_.size(); ++i) {
      Split& split = splits_[given_of_[i]];
      split.passes[pass_].output = std::move(given_[i].output);
      split.passes[pass_].inner_activations = std::move(given_[i].inner_activations);
      if (split.error.ok()) split.error = given_[i].result.error;
    }
  }
  ++pass_;
  given_.clear();
  given_of_.clear();
  for (size_t i = 0; i < splits_.size(); ++i) {
    const Split& split = splits_[i];
    if (pass_ >= split.passes.size() || !parts_[split.part].result.error.ok()) continue;
    const Pass& pass = split.passes[pass_];
    given_.push_back({.pipeline = parts_[split.part].pipeline,
                      .plan = parts_[split.part].plan,
                      .sequences = pass.sequences,
                      .input = pass.input,
                      .layers = pass.layers});
    given_of_.push_back(i);
  }
  return given_;
}

void ActivationCachingStage::Leave(std::span<StagePart> parts) {
  auto split = splits_.begin();
  for (size_t i = 0; i < parts.size(); ++i) {
    StagePart& part = parts[i];
    if (split == splits_.end() || split->part != i) {
      const std::shared_ptr<Pipeline> pipeline = Find(part.pipeline);
      if (!pipeline || !part.result.error.ok()) continue;
      KeepAll(*pipeline, part.sequences, pipeline->options.layers.end, part.output,
              part.inner_activations);
      continue;
    }
    const Split& ran = *split++;
    const Pipeline& pipeline = *ran.pipeline;
    part.result.error = ran.error;
    if (!ran.error.ok()) continue;
    for (const Pass& pass : ran.passes) {
      KeepAll(pipeline, pass.sequences, pass.layers.end, pass.output, pass.inner_activations);
    }
    if (pipeline.options.last) {
      AnswerForAll(*part.plan, part.result);
    } else if (pipeline.kept.contains(pipeline.options.layers.end)) {
      part.result.error = Compose(ran, part);
    }
  }
}

// Moves cached activations with the plan's blocks, before the step's tokens.
void ActivationCachingStage::MoveActivations(Pipeline& pipeline, const StagePart& part) {
  std::vector<std::shared_ptr<ActivationCache>> once;
  {
    const MutexLock lock(pipeline.mutex);
    std::erase_if(pipeline.inner, [](const auto& entry) { return entry.second->empty(); });
    for (const auto& [layer, rows] : pipeline.inner) once.push_back(rows);
  }
  for (const auto& [layer, rows] : pipeline.kept) rows->MoveBlocks(*part.plan);
  for (const auto& rows : once) rows->MoveBlocks(*part.plan);
  for (const SequenceView& s : part.sequences) {
    if (s.only_layers) continue;
    // It lacks nothing (any more), so what its new blocks and those that it writes hold is unused.
    const int written = std::min(s.start / pipeline.options.block_size, s.kept_blocks);
    for (const auto& rows : once) rows->Free(s.blocks.subspan(static_cast<size_t>(written)));
  }
}

ActivationCachingStage::Split ActivationCachingStage::SplitPart(
    size_t index, const StagePart& part, std::shared_ptr<Pipeline> pipeline) {
  Split split{.part = index, .pipeline = std::move(pipeline), .passes = {}, .error = {}};
  const LayerRange hop = split.pipeline->options.layers;
  split.passes.push_back({.layers = hop});
  for (const SequenceView& s : part.sequences) {
    const LayerRange layers = s.RunsAt(hop);
    if (layers.size() == 0) continue;
    auto pass = std::ranges::find(split.passes, layers, &Pass::layers);
    if (pass == split.passes.end()) {
      split.passes.push_back({.layers = layers});
      pass = std::prev(split.passes.end());
    }
    pass->sequences.push_back(s);
  }
  TakeInputs(part, split);
  return split;
}

// Collects the input of each pass: received activations, for sequences that run at the hop's first
// layer, or cached ones. If some are missing the pipeline fails, but only after it has run, because
// other ranks run the same.
void ActivationCachingStage::TakeInputs(const StagePart& part, Split& split) {
  const Pipeline& pipeline = *split.pipeline;
  const LayerRange hop = pipeline.options.layers;
  const size_t row = pipeline.row_bytes;
  std::span<const std::byte> came = part.input;
  for (const SequenceView& s : part.sequences) {
    const LayerRange layers = s.RunsAt(hop);
    if (layers.size() == 0) continue;
    const size_t bytes = s.tokens.size() * row;
    if (layers.begin == hop.begin && pipeline.options.first) continue;  // the input is tokens
    std::vector<std::byte>& input = std::ranges::find(split.passes, layers, &Pass::layers)->input;
    const size_t at = input.size();
    input.resize(at + bytes);
    const auto place = std::span(input).subspan(at);
    if (layers.begin > hop.begin) {
      if (Status taken = TakeInner(s, layers.begin, pipeline, place); !taken.ok())
        split.error = taken;
    } else if (came.size() >= bytes) {
      std::ranges::copy(came.first(bytes), place.begin());
      came = came.subspan(bytes);
    } else {
      split.error =
          InvalidArgument(fmt::format("pipeline {}: the activations are {} bytes too short",
                                      part.pipeline.value(), bytes - came.size()));
    }
  }
  if (!came.empty() && split.error.ok()) {
    split.error = InvalidArgument(fmt::format("pipeline {}: the activations are {} bytes too long",
                                              part.pipeline.value(), came.size()));
  }
}

// Activations that entered a layer within the hop. Unless they are always cached, they are used
// once.
Status ActivationCachingStage::TakeInner(const SequenceView& sequence, int layer,
                                         const Pipeline& pipeline, std::span<std::byte> out) {
  const std::shared_ptr<ActivationCache> rows = pipeline.ActivationsAt(layer);
  const int start = sequence.start, end = sequence.end();
  if (!rows || !rows->Read(sequence.blocks, start, end, out)) {
    return FailedPrecondition(
        fmt::format("the activations of tokens [{}, {}) that entered layer {} are not cached",
                    start, end, layer));
  }
  if (pipeline.kept.contains(layer)) return OkStatus();
  const auto first = static_cast<size_t>(start / pipeline.options.block_size);
  const auto passed = static_cast<size_t>(end / pipeline.options.block_size);
  rows->Free(sequence.blocks.subspan(first, passed - first));
  return OkStatus();
}

void ActivationCachingStage::KeepAll(const Pipeline& pipeline,
                                     std::span<const SequenceView> sequences, int end,
                                     std::span<const std::byte> output,
                                     std::span<const EnteringActivations> inner) {
  for (const EnteringActivations& entering : inner)
    Keep(pipeline, sequences, entering.layer, entering.rows);
  Keep(pipeline, sequences, end, output);
}

// `rows`: the wrapped stage's output for the sequences, in their order; empty if it returns tokens.
void ActivationCachingStage::Keep(const Pipeline& pipeline, std::span<const SequenceView> sequences,
                                  int layer, std::span<const std::byte> rows) {
  const auto kept = pipeline.kept.find(layer);
  if (kept == pipeline.kept.end() || rows.empty()) return;
  for (const SequenceView& s : sequences) {
    const size_t bytes = s.tokens.size() * pipeline.row_bytes;
    kept->second->Put(s.blocks, s.start, rows.first(bytes), 1);
    rows = rows.subspan(bytes);
  }
}

// Composes the activations for the next hop: of sequences that run at its first layer, computed or
// cached.
Status ActivationCachingStage::Compose(const Split& split, StagePart& part) {
  const Pipeline& pipeline = *split.pipeline;
  const LayerRange hop = pipeline.options.layers;
  const ActivationCache& leaving = *pipeline.kept.at(hop.end);
  std::vector<size_t> taken(split.passes.size());  // bytes of each pass's output
  part.output.clear();
  for (const SequenceView& s : part.sequences) {
    const LayerRange ran = s.RunsAt(hop);
    const size_t bytes = s.tokens.size() * pipeline.row_bytes;
    const size_t end = part.output.size();
    if (s.Enters(hop.end)) part.output.resize(end + bytes);
    const auto out = std::span(part.output).subspan(end);
    if (ran.size() > 0) {
      const auto pass = std::ranges::find(split.passes, ran, &Pass::layers);
      size_t& at = taken[static_cast<size_t>(pass - split.passes.begin())];
      std::ranges::copy(std::span(pass->output).subspan(at, out.size()), out.begin());
      at += bytes;
    } else if (!out.empty() && !leaving.Read(s.blocks, s.start, s.end(), out)) {
      return FailedPrecondition(
          fmt::format("pipeline {}: the activations of {} tokens are not cached",
                      part.pipeline.value(), s.end()));
    }
  }
  return OkStatus();
}

bool ActivationCachingStage::HoldsActivations(PipelineId id, const ActivationRange& range,
                                              std::span<const BlockIndex> blocks) const {
  const std::shared_ptr<Pipeline> pipeline = Find(id);
  const auto rows = pipeline ? pipeline->ActivationsAt(range.layer) : nullptr;
  return rows && rows->Holds(blocks, range.first_token, range.end_token);
}

Status ActivationCachingStage::ReadActivations(PipelineId id, const ActivationRange& range,
                                               std::span<const BlockIndex> blocks,
                                               std::span<std::byte> out) const {
  const std::shared_ptr<Pipeline> pipeline = Find(id);
  if (!pipeline) return NotFound(fmt::format("pipeline {} is not open", id.value()));
  const std::shared_ptr<ActivationCache> rows = pipeline->ActivationsAt(range.layer);
  if (rows && rows->Read(blocks, range.first_token, range.end_token, out)) return OkStatus();
  return FailedPrecondition(fmt::format("pipeline {}: the activations of {} tokens are not cached",
                                        id.value(), range.end_token));
}

// Imported activations usually belong to a pipeline that is about to be closed, so until then twice
// the budget may be used.
Status ActivationCachingStage::WriteActivations(PipelineId id, const ActivationRange& range,
                                                std::span<const BlockIndex> blocks,
                                                std::span<const std::byte> in) {
  const std::shared_ptr<Pipeline> pipeline = Find(id);
  if (!pipeline) return NotFound(fmt::format("pipeline {} is not open", id.value()));
  if (auto rows = pipeline->MakeActivationsAt(range.layer))
    rows->Put(blocks, range.first_token, in, 2);
  return OkStatus();
}

// Imported KV arrives before its activations, if they come at all.
Status ActivationCachingStage::WriteKv(PipelineId id, const KvBox& box,
                                       std::span<const BlockIndex> blocks,
                                       std::span<const std::byte> in) {
  MR_RETURN_IF_ERROR(WrappedStage::WriteKv(id, box, blocks, in));
  const std::shared_ptr<Pipeline> pipeline = Find(id);
  if (!pipeline) return NotFound(fmt::format("pipeline {} is not open", id.value()));
  for (int layer = box.layers.begin + 1; layer <= box.layers.end; ++layer) {
    if (auto rows = pipeline->ActivationsAt(layer))
      rows->End(blocks, box.first_token, box.end_token);
  }
  return OkStatus();
}

}  // namespace millrace::stage
