#include "engine/row_keeping_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace millrace::engine {
namespace {

bool Restricted(const StepPlan& plan) {
  return std::ranges::any_of(plan.sequences,
                             [](const SequenceStep& s) { return s.only_hops.has_value(); });
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

StepPlan PlanAtHop(const StepPlan& plan, int hop) {
  StepPlan here = plan;
  here.tokens.clear();
  for (SequenceStep& s : here.sequences) {
    const auto tokens = plan.TokensOf(s);
    s.first_token = static_cast<int32_t>(here.tokens.size());
    if (s.RunsAt(hop)) {
      here.tokens.insert(here.tokens.end(), tokens.begin(), tokens.end());
    } else {
      s.num_tokens = 0;
    }
    s.only_hops.reset();
  }
  return here;
}

RowKeepingStage::Lane::Lane(const StageLane& o, size_t row)
    : options(o),
      row_bytes(row),
      device(o.keep_rows ? static_cast<size_t>(o.num_blocks) : 0),
      host(o.keep_rows ? static_cast<size_t>(o.num_host_blocks) : 0) {}

std::shared_ptr<RowKeepingStage::Lane> RowKeepingStage::Find(LaneId lane) const {
  const std::lock_guard lock(mutex_);
  const auto found = lanes_.find(lane);
  return found == lanes_.end() ? nullptr : found->second;
}

Status RowKeepingStage::OpenLane(LaneId lane, const StageLane& options) {
  MR_RETURN_IF_ERROR(WrappedStage::OpenLane(lane, options));
  auto rows = std::make_shared<Lane>(options, row_bytes());
  const std::lock_guard lock(mutex_);
  lanes_[lane] = std::move(rows);
  return OkStatus();
}

void RowKeepingStage::CloseLane(LaneId lane) {
  WrappedStage::CloseLane(lane);
  std::shared_ptr<Lane> gone;  // freed outside the lock, perhaps by a transfer that reads it
  {
    const std::lock_guard lock(mutex_);
    if (auto node = lanes_.extract(lane)) gone = std::move(node.mapped());
  }
  if (!gone) return;
  const size_t block_bytes = static_cast<size_t>(gone->options.block_size) * gone->row_bytes;
  for (const std::vector<Block>* pool : {&gone->device, &gone->host}) {
    bytes_ -= block_bytes * static_cast<size_t>(std::ranges::count_if(
                                *pool, [](const Block& b) { return b.rows != nullptr; }));
  }
}

Status RowKeepingStage::Run(std::span<StagePart> parts) {
  MR_RETURN_IF_ERROR(WrappedStage::Run(Enter(parts)));
  Leave(parts);
  return OkStatus();
}

std::span<StagePart> RowKeepingStage::Enter(std::span<StagePart> parts) {
  given_.clear();
  filtered_.clear();
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::shared_ptr<Lane> lane = Find(parts[i].lane);
    if (!lane) continue;  // the stage says so
    FollowTables(*lane, *parts[i].plan);
    if (Restricted(*parts[i].plan)) {
      filtered_.push_back({i, PlanAtHop(*parts[i].plan, lane->options.hop)});
    }
  }
  if (filtered_.empty()) return parts;
  for (StagePart& part : parts) given_.push_back({part.lane, part.plan, part.input, {}, {}});
  for (const Filtered& f : filtered_) given_[f.part].plan = &f.plan;
  return given_;
}

void RowKeepingStage::Leave(std::span<StagePart> parts) {
  for (size_t i = 0; i < given_.size(); ++i) {
    parts[i].output = std::move(given_[i].output);
    parts[i].result = std::move(given_[i].result);
  }
  auto filtered = filtered_.begin();
  for (size_t i = 0; i < parts.size(); ++i) {
    StagePart& part = parts[i];
    const StepPlan* ran = part.plan;
    if (filtered != filtered_.end() && filtered->part == i) ran = &(filtered++)->plan;
    const std::shared_ptr<Lane> lane = Find(part.lane);
    if (!lane || !part.result.error.ok()) continue;
    Keep(*lane, *ran, part.output);
    if (ran == part.plan) continue;
    if (lane->options.last) {
      AnswerForAll(*part.plan, part.result);
    } else if (lane->options.keep_rows) {
      part.result.error = Compose(*lane, *part.plan, *ran, part);
    }
  }
}

// Before the step's tokens: what it says of tables and blocks. A plan that makes no sense is the
// wrapped stage's to refuse, and ends the lane.
void RowKeepingStage::FollowTables(Lane& lane, const StepPlan& plan) {
  if (lane.device.empty()) return;
  for (SequenceId id : plan.released) lane.tables.erase(id);
  for (const BlockCopy& c : plan.swap_out) Copy(lane, lane.host, c.to, lane.device, c.from);
  for (const BlockCopy& c : plan.swap_in) Copy(lane, lane.device, c.to, lane.host, c.from);
  for (const BlockCopy& c : plan.copies) Copy(lane, lane.device, c.to, lane.device, c.from);
  for (const SequenceStep& s : plan.sequences) {
    std::vector<BlockIndex>& table = lane.tables[s.id];
    table.resize(std::min(table.size(), static_cast<size_t>(s.keep_blocks)));
    const auto fresh = plan.NewBlocksOf(s);
    table.insert(table.end(), fresh.begin(), fresh.end());
  }
}

bool RowKeepingStage::Allocate(const Lane& lane, Block& block, size_t bytes_max) {
  if (block.rows) return true;
  const size_t bytes = static_cast<size_t>(lane.options.block_size) * lane.row_bytes;
  if (bytes_ + bytes > bytes_max) return false;
  bytes_ += bytes;
  block.rows = std::make_unique_for_overwrite<std::byte[]>(bytes);
  return true;
}

void RowKeepingStage::Copy(const Lane& lane, std::vector<Block>& to, BlockIndex to_block,
                           const std::vector<Block>& from, BlockIndex from_block) {
  if (static_cast<size_t>(to_block) >= to.size() ||
      static_cast<size_t>(from_block) >= from.size()) {
    return;
  }
  const Block& source = from[static_cast<size_t>(from_block)];
  Block& target = to[static_cast<size_t>(to_block)];
  const int count = source.count;
  target.count = 0;
  if (count == 0 || !Allocate(lane, target, bytes_max_)) return;
  std::memcpy(target.rows.get(), source.rows.get(), static_cast<size_t>(count) * lane.row_bytes);
  target.count = count;
}

// A block is filled from its beginning. Whoever begins it anew ends what it held.
void RowKeepingStage::Put(const Lane& lane, Block& block, int offset, const std::byte* row,
                          size_t bytes_max) {
  if (offset > block.count || !Allocate(lane, block, bytes_max)) return;
  std::memcpy(block.rows.get() + static_cast<size_t>(offset) * lane.row_bytes, row, lane.row_bytes);
  block.count = offset + 1;
}

// `rows`: what the wrapped stage made of `plan`, in its order.
void RowKeepingStage::Keep(Lane& lane, const StepPlan& plan, std::span<const std::byte> rows) {
  if (lane.device.empty() || rows.size() != plan.tokens.size() * lane.row_bytes) return;
  for (const SequenceStep& s : plan.sequences) {
    const std::vector<BlockIndex>& table = lane.tables[s.id];
    for (int i = 0; i < s.num_tokens; ++i) {
      const auto [at, offset] = std::div(s.start + i, lane.options.block_size);
      if (at >= std::ssize(table)) break;
      const auto block = static_cast<size_t>(table[static_cast<size_t>(at)]);
      if (block >= lane.device.size()) break;
      Put(lane, lane.device[block], offset,
          &rows[static_cast<size_t>(s.first_token + i) * lane.row_bytes], bytes_max_);
    }
  }
}

// The rows that the next hop is to be given: of sequences that run there, computed or kept.
Status RowKeepingStage::Compose(const Lane& lane, const StepPlan& asked, const StepPlan& ran,
                                StagePart& part) {
  const std::vector<std::byte> computed = std::exchange(part.output, {});
  const int hop = lane.options.hop;
  for (size_t i = 0; i < asked.sequences.size(); ++i) {
    const SequenceStep& s = asked.sequences[i];
    if (!s.RunsAt(hop + 1)) continue;
    const size_t size = static_cast<size_t>(s.num_tokens) * lane.row_bytes;
    const size_t at = part.output.size();
    part.output.resize(at + size);
    if (s.RunsAt(hop)) {
      const size_t first = static_cast<size_t>(ran.sequences[i].first_token) * lane.row_bytes;
      std::memcpy(&part.output[at], &computed[first], size);
      continue;
    }
    const KvBox box{
        {lane.options.layers.end, lane.options.layers.end}, 0, 0, s.start, s.start + s.num_tokens};
    MR_RETURN_IF_ERROR(
        ReadKv(part.lane, box, lane.tables.at(s.id), std::span(part.output).subspan(at)));
  }
  return OkStatus();
}

size_t RowKeepingStage::KvBytes(const KvBox& box) const {
  if (!IsRows(box)) return WrappedStage::KvBytes(box);
  return static_cast<size_t>(box.end_token - box.first_token) * row_bytes();
}

bool RowKeepingStage::HoldsRows(LaneId id, std::span<const BlockIndex> blocks, int tokens) const {
  const std::shared_ptr<Lane> lane = Find(id);
  if (!lane || lane->device.empty()) return false;
  const int block_size = lane->options.block_size;
  if (tokens > std::ssize(blocks) * block_size) return false;
  for (int first = 0; first < tokens; first += block_size) {
    const auto block = static_cast<size_t>(blocks[static_cast<size_t>(first / block_size)]);
    if (block >= lane->device.size()) return false;
    if (lane->device[block].count < std::min(block_size, tokens - first)) return false;
  }
  return true;
}

Status RowKeepingStage::ReadKv(LaneId id, const KvBox& box, std::span<const BlockIndex> blocks,
                               std::span<std::byte> out) const {
  if (!IsRows(box)) return WrappedStage::ReadKv(id, box, blocks, out);
  const std::shared_ptr<Lane> lane = Find(id);
  if (!lane) return NotFound(fmt::format("lane {} is not open", id.value()));
  if (box.layers.end != lane->options.layers.end || !HoldsRows(id, blocks, box.end_token)) {
    return FailedPrecondition(
        fmt::format("lane {}: the rows of {} tokens are not kept", id.value(), box.end_token));
  }
  const int block_size = lane->options.block_size;
  std::byte* to = out.data();
  for (int t = box.first_token; t < box.end_token;) {
    const auto [at, offset] = std::div(t, block_size);
    const int count = std::min(block_size - offset, box.end_token - t);
    const Block& block = lane->device[static_cast<size_t>(blocks[static_cast<size_t>(at)])];
    const size_t bytes = static_cast<size_t>(count) * lane->row_bytes;
    std::memcpy(to, block.rows.get() + static_cast<size_t>(offset) * lane->row_bytes, bytes);
    to += bytes;
    t += count;
  }
  return OkStatus();
}

// KV that comes from elsewhere comes before its rows, if they come at all. Rows that come are those
// of a lane that is about to be closed: until then there may be twice as many.
Status RowKeepingStage::WriteKv(LaneId id, const KvBox& box, std::span<const BlockIndex> blocks,
                                std::span<const std::byte> in) {
  const std::shared_ptr<Lane> lane = Find(id);
  if (!IsRows(box)) MR_RETURN_IF_ERROR(WrappedStage::WriteKv(id, box, blocks, in));
  if (!lane) return NotFound(fmt::format("lane {} is not open", id.value()));
  if (lane->device.empty()) return OkStatus();
  const int block_size = lane->options.block_size;
  const std::byte* row = in.data();
  for (int t = box.first_token; t < box.end_token; ++t, row += lane->row_bytes) {
    const auto [at, offset] = std::div(t, block_size);
    if (at >= std::ssize(blocks)) break;
    const auto index = static_cast<size_t>(blocks[static_cast<size_t>(at)]);
    if (index >= lane->device.size()) break;
    Block& block = lane->device[index];
    if (IsRows(box)) {
      Put(*lane, block, offset, row, 2 * bytes_max_);
    } else {
      block.count = std::min<int>(block.count, offset);
    }
  }
  return OkStatus();
}

}  // namespace millrace::engine
