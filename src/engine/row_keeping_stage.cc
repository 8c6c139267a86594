#include "engine/row_keeping_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/plan_at_layers.h"

namespace millrace::engine {
namespace {

bool Restricted(const StepPlan& plan) {
  return std::ranges::any_of(plan.sequences,
                             [](const SequenceStep& s) { return s.only_layers.has_value(); });
}

bool IsRows(const KvBox& box) { return box.layers.size() == 0; }

// The last hop answers for every sequence of the step, whether it ran there or not.
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

RowKeepingStage::Lane::Lane(const StageLane& o, size_t row, RowBudget& rows_budget)
    : options(o), row_bytes(row), budget(rows_budget) {
  for (const int layer : o.keep_rows_at) kept[layer] = MakeRows();
}

std::shared_ptr<KeptRows> RowKeepingStage::Lane::MakeRows() {
  return std::make_shared<KeptRows>(budget, row_bytes, options.block_size, options.num_blocks,
                                    options.num_host_blocks);
}

std::shared_ptr<KeptRows> RowKeepingStage::Lane::RowsAt(int layer) const {
  if (const auto always = kept.find(layer); always != kept.end()) return always->second;
  const std::lock_guard lock(mutex);
  const auto found = inner.find(layer);
  return found == inner.end() ? nullptr : found->second;
}

std::shared_ptr<KeptRows> RowKeepingStage::Lane::MakeRowsAt(int layer) {
  if (kept.contains(layer) || layer <= options.layers.begin || layer >= options.layers.end) {
    return RowsAt(layer);
  }
  const std::lock_guard lock(mutex);
  std::shared_ptr<KeptRows>& rows = inner[layer];
  if (!rows) rows = MakeRows();
  return rows;
}

std::shared_ptr<RowKeepingStage::Lane> RowKeepingStage::Find(LaneId lane) const {
  const std::lock_guard lock(mutex_);
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? nullptr : found->second;
}

Status RowKeepingStage::OpenLane(LaneId lane, const StageLane& options) {
  MR_RETURN_IF_ERROR(WrappedStage::OpenLane(lane, options));
  auto rows = std::make_shared<Lane>(options, row_bytes(), budget_);
  const std::lock_guard lock(mutex_);
  lanes_[lane] = std::move(rows);
  return OkStatus();
}

void RowKeepingStage::CloseLane(LaneId lane) {
  WrappedStage::CloseLane(lane);
  std::shared_ptr<Lane> gone;  // freed outside the lock, perhaps by a transfer that reads it
  const std::lock_guard lock(mutex_);
  if (auto node = lanes_.extract(lane)) gone = std::move(node.mapped());
}

Status RowKeepingStage::Run(std::span<StagePart> parts) {
  for (auto batch = Enter(parts); !batch.empty(); batch = Next()) {
    MR_RETURN_IF_ERROR(WrappedStage::Run(batch));
  }
  Leave(parts);
  return OkStatus();
}

std::span<StagePart> RowKeepingStage::Enter(std::span<StagePart> parts) {
  parts_ = parts;
  given_.clear();
  splits_.clear();
  pass_ = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::shared_ptr<Lane> lane = Find(parts[i].lane);
    if (!lane) continue;  // the stage says so
    FollowTables(*lane, *parts[i].plan);
    if (Restricted(*parts[i].plan)) {
      splits_.push_back(SplitPart(i, parts[i], std::move(lane)));
    }
  }
  if (splits_.empty()) return parts;
  for (StagePart& part : parts) given_.push_back({part.lane, part.plan, part.input, {}, {}, {}});
  for (const Split& split : splits_) {
    given_[split.part].plan = &split.passes.front().plan;
    given_[split.part].input = split.passes.front().input;
  }
  return given_;
}

// Some of the layers alone, for the parts that ask for them, until no part asks for more.
std::span<StagePart> RowKeepingStage::Next() {
  if (splits_.empty()) return {};
  if (pass_ == 0) {
    for (size_t i = 0; i < given_.size(); ++i) {
      parts_[i].output = std::move(given_[i].output);
      parts_[i].result = std::move(given_[i].result);
      parts_[i].inner_rows = std::move(given_[i].inner_rows);
    }
    for (Split& split : splits_) {
      StagePart& part = parts_[split.part];
      split.passes.front().output = std::move(part.output);
      split.passes.front().inner_rows = std::move(part.inner_rows);
      if (!part.result.error.ok()) split.error = part.result.error;
    }
  } else {
    for (size_t i = 0; i < given_.size(); ++i) {
      Split& split = splits_[given_of_[i]];
      split.passes[pass_].output = std::move(given_[i].output);
      split.passes[pass_].inner_rows = std::move(given_[i].inner_rows);
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
    given_.push_back({parts_[split.part].lane, &pass.plan, pass.input, {}, {}, pass.layers});
    given_of_.push_back(i);
  }
  return given_;
}

void RowKeepingStage::Leave(std::span<StagePart> parts) {
  auto split = splits_.begin();
  for (size_t i = 0; i < parts.size(); ++i) {
    StagePart& part = parts[i];
    if (split == splits_.end() || split->part != i) {
      const std::shared_ptr<Lane> lane = Find(part.lane);
      if (!lane || !part.result.error.ok()) continue;
      KeepAll(*lane, *part.plan, lane->options.layers.end, part.output, part.inner_rows);
      continue;
    }
    const Split& ran = *split++;
    const Lane& lane = *ran.lane;
    part.result.error = ran.error;
    if (!ran.error.ok()) continue;
    for (const Pass& pass : ran.passes) {
      KeepAll(lane, pass.plan, pass.layers.end, pass.output, pass.inner_rows);
    }
    if (lane.options.last) {
      AnswerForAll(*part.plan, part.result);
    } else if (lane.kept.contains(lane.options.layers.end)) {
      part.result.error = Compose(ran, part);
    }
  }
}

// Before the step's tokens: what it says of tables and blocks. A plan that makes no sense is the
// wrapped stage's to refuse, and ends the lane.
void RowKeepingStage::FollowTables(Lane& lane, const StepPlan& plan) {
  std::vector<std::shared_ptr<KeptRows>> once;
  {
    const std::lock_guard lock(lane.mutex);
    std::erase_if(lane.inner, [](const auto& entry) { return entry.second->empty(); });
    for (const auto& [layer, rows] : lane.inner) once.push_back(rows);
  }
  for (SequenceId id : plan.released) lane.tables.erase(id);
  for (const auto& [layer, rows] : lane.kept) rows->MoveBlocks(plan);
  for (const auto& rows : once) rows->MoveBlocks(plan);
  const bool keeps = !lane.kept.empty();
  if (!keeps && once.empty() && lane.tables.empty() && !Restricted(plan)) return;
  for (const SequenceStep& s : plan.sequences) {
    const bool lacks = s.only_layers.has_value();
    if (!lacks) {  // nobody else's rows will be asked for in what it is given
      for (const auto& rows : once) rows->Free(plan.NewBlocksOf(s));
    }
    if (!keeps && !lacks && !lane.tables.contains(s.id)) continue;
    std::vector<BlockIndex>& table = lane.tables[s.id];
    table.resize(std::min(table.size(), static_cast<size_t>(s.keep_blocks)));
    const auto fresh = plan.NewBlocksOf(s);
    table.insert(table.end(), fresh.begin(), fresh.end());
    if (lacks) continue;
    // It lacks nothing (any more).
    const size_t written = static_cast<size_t>(s.start / lane.options.block_size);
    for (const auto& rows : once) {
      rows->Free(std::span(table).subspan(std::min(written, table.size())));
    }
    if (!keeps) lane.tables.erase(s.id);
  }
}

RowKeepingStage::Split RowKeepingStage::SplitPart(size_t index, const StagePart& part,
                                                  std::shared_ptr<Lane> lane) {
  Split split{.part = index, .lane = std::move(lane), .passes = {}, .error = {}};
  const LayerRange hop = split.lane->options.layers;
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

// Each pass its rows: those that came, of sequences that run at the hop's first layer, or those
// that are kept here. Where they are missing the lane fails, but only after it has run: other ranks
// run the same.
void RowKeepingStage::TakeInputs(const StagePart& part, Split& split) {
  const Lane& lane = *split.lane;
  const LayerRange hop = lane.options.layers;
  const size_t row = lane.row_bytes;
  std::span<const std::byte> came = part.input;
  for (const SequenceStep& s : part.plan->sequences) {
    const LayerRange layers = s.RunsAt(hop);
    if (layers.size() == 0) continue;
    const size_t bytes = static_cast<size_t>(s.num_tokens) * row;
    if (layers.begin == hop.begin && lane.options.first) continue;  // from its tokens
    std::vector<std::byte>& input = std::ranges::find(split.passes, layers, &Pass::layers)->input;
    const size_t at = input.size();
    input.resize(at + bytes);
    const auto place = std::span(input).subspan(at);
    if (layers.begin > hop.begin) {
      if (Status taken = TakeInner(s, layers.begin, lane, place); !taken.ok()) split.error = taken;
    } else if (came.size() >= bytes) {
      std::ranges::copy(came.first(bytes), place.begin());
      came = came.subspan(bytes);
    } else {
      split.error = InvalidArgument(fmt::format("lane {}: {} bytes of activations too few",
                                                part.lane.value(), bytes - came.size()));
    }
  }
  if (!came.empty() && split.error.ok()) {
    split.error = InvalidArgument(
        fmt::format("lane {}: {} bytes of activations too many", part.lane.value(), came.size()));
  }
}

// Rows that entered a layer within the hop. Unless they are always kept, they are used once.
Status RowKeepingStage::TakeInner(const SequenceStep& step, int layer, const Lane& lane,
                                  std::span<std::byte> out) {
  const std::shared_ptr<KeptRows> rows = lane.RowsAt(layer);
  const std::vector<BlockIndex>& table = lane.tables.at(step.id);
  const int end = step.start + step.num_tokens;
  if (!rows || !rows->Read(table, step.start, end, out)) {
    return FailedPrecondition(fmt::format(
        "the rows of tokens [{}, {}) that entered layer {} are not kept", step.start, end, layer));
  }
  if (lane.kept.contains(layer)) return OkStatus();
  const auto first = static_cast<size_t>(step.start / lane.options.block_size);
  const auto passed = static_cast<size_t>(end / lane.options.block_size);
  rows->Free(std::span(table).subspan(first, passed - first));
  return OkStatus();
}

void RowKeepingStage::KeepAll(const Lane& lane, const StepPlan& plan, int end,
                              std::span<const std::byte> output,
                              std::span<const EnteringRows> inner) {
  for (const EnteringRows& entering : inner) Keep(lane, plan, entering.layer, entering.rows);
  Keep(lane, plan, end, output);
}

// `rows`: what the wrapped stage made of `plan`, in its order.
void RowKeepingStage::Keep(const Lane& lane, const StepPlan& plan, int layer,
                           std::span<const std::byte> rows) {
  const auto kept = lane.kept.find(layer);
  if (kept == lane.kept.end() || rows.size() != plan.tokens.size() * lane.row_bytes) return;
  for (const SequenceStep& s : plan.sequences) {
    const auto first = static_cast<size_t>(s.first_token) * lane.row_bytes;
    const auto bytes = static_cast<size_t>(s.num_tokens) * lane.row_bytes;
    kept->second->Put(lane.tables.at(s.id), s.start, rows.subspan(first, bytes), 1);
  }
}

// The rows that the next hop is to be given: of sequences that run at its first layer, computed or
// kept.
Status RowKeepingStage::Compose(const Split& split, StagePart& part) {
  const Lane& lane = *split.lane;
  const LayerRange hop = lane.options.layers;
  const KeptRows& leaving = *lane.kept.at(hop.end);
  std::vector<size_t> next(split.passes.size());  // sequence of each pass
  part.output.clear();
  for (size_t i = 0; i < part.plan->sequences.size(); ++i) {
    const SequenceStep& s = part.plan->sequences[i];
    const LayerRange ran = s.RunsAt(hop);
    const auto pass = std::ranges::find(split.passes, ran.size() > 0 ? ran : hop, &Pass::layers);
    size_t& at = next[static_cast<size_t>(pass - split.passes.begin())];
    const size_t place = pass == split.passes.begin() ? i : at++;
    if (!s.Enters(hop.end)) continue;
    const size_t size = static_cast<size_t>(s.num_tokens) * lane.row_bytes;
    const size_t end = part.output.size();
    part.output.resize(end + size);
    if (ran.size() > 0) {
      const size_t first =
          static_cast<size_t>(pass->plan.sequences[place].first_token) * lane.row_bytes;
      std::memcpy(&part.output[end], &pass->output[first], size);
    } else if (!leaving.Read(lane.tables.at(s.id), s.start, s.start + s.num_tokens,
                             std::span(part.output).subspan(end))) {
      return FailedPrecondition(fmt::format("lane {}: the rows of {} tokens are not kept",
                                            part.lane.value(), s.start + s.num_tokens));
    }
  }
  return OkStatus();
}

size_t RowKeepingStage::KvBytes(const KvBox& box) const {
  if (!IsRows(box)) return WrappedStage::KvBytes(box);
  return static_cast<size_t>(box.end_token - box.first_token) * row_bytes();
}

bool RowKeepingStage::HoldsRows(LaneId id, int layer, std::span<const BlockIndex> blocks,
                                int first_token, int end_token) const {
  const std::shared_ptr<Lane> lane = Find(id);
  const std::shared_ptr<KeptRows> rows = lane ? lane->RowsAt(layer) : nullptr;
  return rows && rows->Holds(blocks, first_token, end_token);
}

Status RowKeepingStage::ReadKv(LaneId id, const KvBox& box, std::span<const BlockIndex> blocks,
                               std::span<std::byte> out) const {
  if (!IsRows(box)) return WrappedStage::ReadKv(id, box, blocks, out);
  const std::shared_ptr<Lane> lane = Find(id);
  if (!lane) return NotFound(fmt::format("lane {} is not open", id.value()));
  const std::shared_ptr<KeptRows> rows = lane->RowsAt(box.layers.end);
  if (rows && rows->Read(blocks, box.first_token, box.end_token, out)) return OkStatus();
  return FailedPrecondition(
      fmt::format("lane {}: the rows of {} tokens are not kept", id.value(), box.end_token));
}

// KV that comes from elsewhere comes before its rows, if they come at all. These are mostly of a
// lane that is about to be closed: until then there may be twice as many.
Status RowKeepingStage::WriteKv(LaneId id, const KvBox& box, std::span<const BlockIndex> blocks,
                                std::span<const std::byte> in) {
  const std::shared_ptr<Lane> lane = Find(id);
  if (!IsRows(box)) MR_RETURN_IF_ERROR(WrappedStage::WriteKv(id, box, blocks, in));
  if (!lane) return NotFound(fmt::format("lane {} is not open", id.value()));
  if (IsRows(box)) {
    if (auto rows = lane->MakeRowsAt(box.layers.end)) rows->Put(blocks, box.first_token, in, 2);
    return OkStatus();
  }
  for (int layer = box.layers.begin + 1; layer <= box.layers.end; ++layer) {
    if (auto rows = lane->RowsAt(layer)) rows->End(blocks, box.first_token, box.end_token);
  }
  return OkStatus();
}

}  // namespace millrace::engine
