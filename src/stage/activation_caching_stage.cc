#include "stage/activation_caching_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "stage/plan_at_layers.h"

namespace millrace::stage {
namespace {

bool Restricted(const StepPlan& plan) {
  return std::ranges::any_of(plan.sequences,
                             [](const SequenceStep& s) { return s.only_layers.has_value(); });
}

bool IsRows(const KvBox& box) { return box.layers.size() == 0; }

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
    FollowTables(*pipeline, *parts[i].plan);
    if (Restricted(*parts[i].plan)) {
      splits_.push_back(SplitPart(i, parts[i], std::move(pipeline)));
    }
  }
  if (splits_.empty()) return parts;
  for (StagePart& part : parts)
    given_.push_back({part.pipeline, part.plan, part.input, {}, {}, {}});
  for (const Split& split : splits_) {
    given_[split.part].plan = &split.passes.front().plan;
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
    given_.push_back({parts_[split.part].pipeline, &pass.plan, pass.input, {}, {}, pass.layers});
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
      KeepAll(*pipeline, *part.plan, pipeline->options.layers.end, part.output,
              part.inner_activations);
      continue;
    }
    const Split& ran = *split++;
    const Pipeline& pipeline = *ran.pipeline;
    part.result.error = ran.error;
    if (!ran.error.ok()) continue;
    for (const Pass& pass : ran.passes) {
      KeepAll(pipeline, pass.plan, pass.layers.end, pass.output, pass.inner_activations);
    }
    if (pipeline.options.last) {
      AnswerForAll(*part.plan, part.result);
    } else if (pipeline.kept.contains(pipeline.options.layers.end)) {
      part.result.error = Compose(ran, part);
    }
  }
}

// Applies the plan's tables and blocks, before the step's tokens. An invalid plan is refused by the
// wrapped stage and ends the pipeline.
void ActivationCachingStage::FollowTables(Pipeline& pipeline, const StepPlan& plan) {
  std::vector<std::shared_ptr<ActivationCache>> once;
  {
    const MutexLock lock(pipeline.mutex);
    std::erase_if(pipeline.inner, [](const auto& entry) { return entry.second->empty(); });
    for (const auto& [layer, rows] : pipeline.inner) once.push_back(rows);
  }
  for (SequenceId id : plan.released) pipeline.tables.erase(id);
  for (const auto& [layer, rows] : pipeline.kept) rows->MoveBlocks(plan);
  for (const auto& rows : once) rows->MoveBlocks(plan);
  const bool keeps = !pipeline.kept.empty();
  if (!keeps && once.empty() && pipeline.tables.empty() && !Restricted(plan)) return;
  for (const SequenceStep& s : plan.sequences) {
    const bool lacks = s.only_layers.has_value();
    if (!lacks) {  // no activations of other sequences will be read from its blocks
      for (const auto& rows : once) rows->Free(plan.NewBlocksOf(s));
    }
    if (!keeps && !lacks && !pipeline.tables.contains(s.id)) continue;
    std::vector<BlockIndex>& table = pipeline.tables[s.id];
    table.resize(std::min(table.size(), static_cast<size_t>(s.keep_blocks)));
    const auto fresh = plan.NewBlocksOf(s);
    table.insert(table.end(), fresh.begin(), fresh.end());
    if (lacks) continue;
    // It lacks nothing (any more).
    const size_t written = static_cast<size_t>(s.start / pipeline.options.block_size);
    for (const auto& rows : once) {
      rows->Free(std::span(table).subspan(std::min(written, table.size())));
    }
    if (!keeps) pipeline.tables.erase(s.id);
  }
}

ActivationCachingStage::Split ActivationCachingStage::SplitPart(
    size_t index, const StagePart& part, std::shared_ptr<Pipeline> pipeline) {
  Split split{.part = index, .pipeline = std::move(pipeline), .passes = {}, .error = {}};
  const LayerRange hop = split.pipeline->options.layers;
  split.passes.push_back({hop, PlanAtHop(*part.plan, hop), {}, {}});
  for (const SequenceStep& s : part.plan->sequences) {
    const LayerRange layers = s.RunsAt(hop);
    if (layers.size() == 0 ||
        std::ranges::find(split.passes, layers, &Pass::layers) != split.passes.end()) {
      continue;
    }
    split.passes.push_back({layers, PlanAtLayers(*part.plan, hop, layers), {}, {}});
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
  for (const SequenceStep& s : part.plan->sequences) {
    const LayerRange layers = s.RunsAt(hop);
    if (layers.size() == 0) continue;
    const size_t bytes = static_cast<size_t>(s.num_tokens) * row;
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
Status ActivationCachingStage::TakeInner(const SequenceStep& step, int layer,
                                         const Pipeline& pipeline, std::span<std::byte> out) {
  const std::shared_ptr<ActivationCache> rows = pipeline.ActivationsAt(layer);
  const std::vector<BlockIndex>& table = pipeline.tables.at(step.id);
  const int end = step.start + step.num_tokens;
  if (!rows || !rows->Read(table, step.start, end, out)) {
    return FailedPrecondition(
        fmt::format("the activations of tokens [{}, {}) that entered layer {} are not cached",
                    step.start, end, layer));
  }
  if (pipeline.kept.contains(layer)) return OkStatus();
  const auto first = static_cast<size_t>(step.start / pipeline.options.block_size);
  const auto passed = static_cast<size_t>(end / pipeline.options.block_size);
  rows->Free(std::span(table).subspan(first, passed - first));
  return OkStatus();
}

void ActivationCachingStage::KeepAll(const Pipeline& pipeline, const StepPlan& plan, int end,
                                     std::span<const std::byte> output,
                                     std::span<const EnteringActivations> inner) {
  for (const EnteringActivations& entering : inner)
    Keep(pipeline, plan, entering.layer, entering.rows);
  Keep(pipeline, plan, end, output);
}

// `rows`: the wrapped stage's output for `plan`, in its order.
void ActivationCachingStage::Keep(const Pipeline& pipeline, const StepPlan& plan, int layer,
                                  std::span<const std::byte> rows) {
  const auto kept = pipeline.kept.find(layer);
  if (kept == pipeline.kept.end() || rows.size() != plan.tokens.size() * pipeline.row_bytes) return;
  for (const SequenceStep& s : plan.sequences) {
    const auto first = static_cast<size_t>(s.first_token) * pipeline.row_bytes;
    const auto bytes = static_cast<size_t>(s.num_tokens) * pipeline.row_bytes;
    kept->second->Put(pipeline.tables.at(s.id), s.start, rows.subspan(first, bytes), 1);
  }
}

// Composes the activations for the next hop: of sequences that run at its first layer, computed or
// cached.
Status ActivationCachingStage::Compose(const Split& split, StagePart& part) {
  const Pipeline& pipeline = *split.pipeline;
  const LayerRange hop = pipeline.options.layers;
  const ActivationCache& leaving = *pipeline.kept.at(hop.end);
  std::vector<size_t> next(split.passes.size());  // sequence index in each pass
  part.output.clear();
  for (size_t i = 0; i < part.plan->sequences.size(); ++i) {
    const SequenceStep& s = part.plan->sequences[i];
    const LayerRange ran = s.RunsAt(hop);
    const auto pass = std::ranges::find(split.passes, ran.size() > 0 ? ran : hop, &Pass::layers);
    size_t& at = next[static_cast<size_t>(pass - split.passes.begin())];
    const size_t place = pass == split.passes.begin() ? i : at++;
    if (!s.Enters(hop.end)) continue;
    const size_t size = static_cast<size_t>(s.num_tokens) * pipeline.row_bytes;
    const size_t end = part.output.size();
    part.output.resize(end + size);
    if (ran.size() > 0) {
      const size_t first =
          static_cast<size_t>(pass->plan.sequences[place].first_token) * pipeline.row_bytes;
      std::memcpy(&part.output[end], &pass->output[first], size);
    } else if (!leaving.Read(pipeline.tables.at(s.id), s.start, s.start + s.num_tokens,
                             std::span(part.output).subspan(end))) {
      return FailedPrecondition(
          fmt::format("pipeline {}: the activations of {} tokens are not cached",
                      part.pipeline.value(), s.start + s.num_tokens));
    }
  }
  return OkStatus();
}

size_t ActivationCachingStage::KvBytes(const KvBox& box) const {
  if (!IsRows(box)) return WrappedStage::KvBytes(box);
  return static_cast<size_t>(box.end_token - box.first_token) * row_bytes();
}

bool ActivationCachingStage::HoldsActivations(PipelineId id, int layer,
                                              std::span<const BlockIndex> blocks, int first_token,
                                              int end_token) const {
  const std::shared_ptr<Pipeline> pipeline = Find(id);
  const std::shared_ptr<ActivationCache> rows = pipeline ? pipeline->ActivationsAt(layer) : nullptr;
  return rows && rows->Holds(blocks, first_token, end_token);
}

Status ActivationCachingStage::ReadKv(PipelineId id, const KvBox& box,
                                      std::span<const BlockIndex> blocks,
                                      std::span<std::byte> out) const {
  if (!IsRows(box)) return WrappedStage::ReadKv(id, box, blocks, out);
  const std::shared_ptr<Pipeline> pipeline = Find(id);
  if (!pipeline) return NotFound(fmt::format("pipeline {} is not open", id.value()));
  const std::shared_ptr<ActivationCache> rows = pipeline->ActivationsAt(box.layers.end);
  if (rows && rows->Read(blocks, box.first_token, box.end_token, out)) return OkStatus();
  return FailedPrecondition(fmt::format("pipeline {}: the activations of {} tokens are not cached",
                                        id.value(), box.end_token));
}

// Imported KV arrives before its activations, if they come at all. These usually belong to a
// pipeline that is about to be closed, so until then twice the budget may be used.
Status ActivationCachingStage::WriteKv(PipelineId id, const KvBox& box,
                                       std::span<const BlockIndex> blocks,
                                       std::span<const std::byte> in) {
  const std::shared_ptr<Pipeline> pipeline = Find(id);
  if (!IsRows(box)) MR_RETURN_IF_ERROR(WrappedStage::WriteKv(id, box, blocks, in));
  if (!pipeline) return NotFound(fmt::format("pipeline {} is not open", id.value()));
  if (IsRows(box)) {
    if (auto rows = pipeline->MakeActivationsAt(box.layers.end))
      rows->Put(blocks, box.first_token, in, 2);
    return OkStatus();
  }
  for (int layer = box.layers.begin + 1; layer <= box.layers.end; ++layer) {
    if (auto rows = pipeline->ActivationsAt(layer))
      rows->End(blocks, box.first_token, box.end_token);
  }
  return OkStatus();
}

}  // namespace millrace::stage
