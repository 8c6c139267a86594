// How steps run: plans and rows arrive, in either order; whatever is ready becomes one batch; the
// plan has gone on to the next hop before, the rows go afterwards.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cluster/worker_core.h"

namespace millrace::cluster {
namespace {

bool BlocksWithin(const std::vector<BlockCopy>& copies, int from, int to) {
  return std::ranges::all_of(copies, [&](const BlockCopy& c) {
    return c.from >= 0 && c.from < from && c.to >= 0 && c.to < to;
  });
}

// Decodes only: nobody waits for a prompt among them.
bool IsDecode(const StepPlan& plan) {
  return std::ranges::all_of(plan.sequences,
                             [](const SequenceStep& s) { return s.num_tokens == 1; });
}

}  // namespace

// A peer's mistake must not become this process's crash: what the stage relies on is checked here.
Status WorkerCore::CheckStep(Lane& lane, const StepPlan& plan) {
  const int blocks = lane.open.num_blocks, host = lane.open.num_host_blocks;
  if (lane.steps.size() >= WorkerCoreOptions::kStepsWaitingMax) {
    return ResourceExhausted(fmt::format("{} steps wait, the limit", lane.steps.size()));
  }
  // Without the step between them its tables would be wrong.
  if (lane.newest && plan.id.value() != lane.newest->value() + 1) {
    return InvalidArgument(
        fmt::format("step {} after step {}", plan.id.value(), lane.newest->value()));
  }
  if (plan.sequences.empty() || std::ssize(plan.tokens) > lane.open.max_batched_tokens) {
    return InvalidArgument(fmt::format("a step of {} sequences and {} tokens",
                                       plan.sequences.size(), plan.tokens.size()));
  }
  if (!std::ranges::all_of(plan.blocks, [&](int b) { return b >= 0 && b < blocks; }) ||
      !BlocksWithin(plan.copies, blocks, blocks) || !BlocksWithin(plan.swap_out, blocks, host) ||
      !BlocksWithin(plan.swap_in, host, blocks)) {
    return InvalidArgument("a block outside the lane's pool");
  }
  for (SequenceId id : plan.released) lane.known.erase(id);
  for (const SequenceStart& start : plan.started) lane.known.insert(start.id);
  for (const SequenceStep& s : plan.sequences) {
    if (lane.known.contains(s.id)) continue;
    return InvalidArgument(
        fmt::format("a step of sequence {}, which was never started", s.id.value()));
  }
  return OkStatus();
}

void WorkerCore::On(LaneStep& message, Time) {
  const auto found = lanes_.find(message.lane);
  if (found == lanes_.end() || found->second.broken) {
    ++counters_.stale_steps;
    return;
  }
  Lane& lane = found->second;
  if (lane.newest && message.plan.id <= *lane.newest) {  // a second time
    ++counters_.stale_steps;
    return;
  }
  if (const Status ok = CheckStep(lane, message.plan); !ok.ok()) {
    ++counters_.refused;
    return Break(message.lane, lane, ok, std::nullopt);
  }
  lane.newest = message.plan.id;
  Forward(lane, message);
  lane.steps.push_back(std::make_shared<const StepPlan>(std::move(message.plan)));
}

void WorkerCore::Forward(const Lane& lane, const LaneStep& step) {
  if (lane.last() || lane.open.rank != 0) return;
  for (const WorkerAddress& next : lane.open.hops[static_cast<size_t>(lane.open.hop) + 1].ranks) {
    Emit(SendToPeer{next, step});
  }
}

void WorkerCore::RowsArrived(LaneId id, StepId step, RowBytes rows) {
  const auto found = lanes_.find(id);
  if (found == lanes_.end() || found->second.broken) {
    ++counters_.stale_rows;
    return;
  }
  Lane& lane = found->second;
  if (lane.taken && step <= *lane.taken) {  // a second time
    ++counters_.stale_rows;
    return;
  }
  if (lane.first() || lane.inputs.size() >= WorkerCoreOptions::kStepsWaitingMax) {
    ++counters_.refused;
    return Break(id, lane, InvalidArgument("rows that nobody asked for"), std::nullopt);
  }
  lane.inputs.try_emplace(step, std::move(rows));
}

void WorkerCore::On(BatchOrder& message, Time) {
  const auto found = shards_.find(message.shard);
  if (found == shards_.end() || found->second.load.rank.rank == 0) {
    ++counters_.stale_orders;
    return;
  }
  if (found->second.orders.size() >= WorkerCoreOptions::kStepsWaitingMax) {
    ++counters_.refused;
    return;
  }
  found->second.orders.push_back(std::move(message));
}

bool WorkerCore::HasNext(const Lane& lane) const {
  if (!lane.started || lane.failed || lane.steps.empty()) return false;
  return lane.first() || lane.inputs.contains(lane.steps.front()->id);
}

std::optional<ReadyBatch> WorkerCore::NextBatch(Time now) {
  MR_CHECK(!running_) << "one batch at a time";
  std::vector<std::pair<uint64_t, ShardId>> order;  // who has waited longest
  for (const auto& [id, shard] : shards_) order.emplace_back(shard.turn, id);
  std::ranges::sort(order);
  for (const auto& [turn, id] : order) {
    Shard& shard = shards_.at(id);
    ReadyBatch batch;
    batch.shard = id;
    if (shard.load.rank.rank == 0) {
      FillByArrival(id, shard, batch);
    } else if (!FillByOrder(id, shard, batch)) {
      continue;
    }
    if (batch.parts.empty()) continue;
    shard.turn = ++turns_;
    running_ = batch;
    running_since_ = now;
    return batch;
  }
  return std::nullopt;
}

// Lanes in turn, as many as fit.
void WorkerCore::FillByArrival(ShardId id, const Shard& shard, ReadyBatch& batch) {
  std::vector<std::pair<uint64_t, LaneId>> ready;
  for (const auto& [lane_id, lane] : lanes_) {
    if (lane.shard == id && !lane.broken && HasNext(lane)) ready.emplace_back(lane.turn, lane_id);
  }
  std::ranges::sort(ready);
  int64_t tokens = 0;
  for (const auto& [turn, lane_id] : ready) {
    Lane& lane = lanes_.at(lane_id);
    const int64_t more = std::ssize(lane.steps.front()->tokens);
    if (!batch.parts.empty() && tokens + more > shard.load.max_batched_tokens) break;
    tokens += more;
    Take(lane_id, lane, batch);
  }
  if (batch.parts.empty()) return;
  for (size_t rank = 1; rank < shard.load.ranks.size(); ++rank) {
    BatchOrder order;
    for (const ReadyBatch::Part& part : batch.parts) {
      const auto& hop = lanes_.at(part.lane).hop();
      order.shard = hop.shards[rank];
      order.parts.push_back({part.lane, part.plan->id});
    }
    Emit(SendToPeer{shard.load.ranks[rank], std::move(order)});
  }
}

// False: what rank 0 runs next is not all here yet. What it has begun is run here too, even where
// the loss of a peer has broken the lane meanwhile: the KV of this stage outlives it. But an order
// whose lane is gone, or whose rows nobody will send, can never run: rank 0 would wait for this
// rank until its deadline.
bool WorkerCore::FillByOrder(ShardId id, Shard& shard, ReadyBatch& batch) {
  while (!shard.orders.empty()) {
    const BatchOrder& order = shard.orders.front();
    const bool gone = std::ranges::any_of(order.parts, [&](const BatchOrder::Part& part) {
      const auto lane = lanes_.find(part.lane);
      return lane == lanes_.end() || (lane->second.broken && !HasNext(lane->second));
    });
    if (gone) {
      ++counters_.stale_orders;
      shard.orders.pop_front();
      Emit(AbortGroup{id, "a lane was closed while its batch ran"});
      continue;
    }
    const bool ready = std::ranges::all_of(order.parts, [&](const BatchOrder::Part& part) {
      const Lane& lane = lanes_.at(part.lane);
      return HasNext(lane) && lane.steps.front()->id == part.step;
    });
    if (!ready) return false;
    for (const BatchOrder::Part& part : order.parts) Take(part.lane, lanes_.at(part.lane), batch);
    shard.orders.pop_front();
    return true;
  }
  return false;
}

void WorkerCore::Take(LaneId id, Lane& lane, ReadyBatch& batch) {
  ReadyBatch::Part& part = batch.parts.emplace_back();
  part.lane = id;
  part.plan = std::move(lane.steps.front());
  lane.steps.pop_front();
  lane.taken = part.plan->id;
  lane.turn = ++turns_;
  if (lane.first()) return;
  auto input = lane.inputs.extract(part.plan->id);
  part.input = std::move(input.mapped());
}

void WorkerCore::BatchEnded(const Status& status, std::vector<PartOutput> outputs, Time) {
  MR_CHECK(running_) << "no batch runs";
  const ReadyBatch batch = std::move(*running_);
  running_.reset();
  ++counters_.batches;
  counters_.parts += batch.parts.size();
  for (size_t i = 0; i < batch.parts.size(); ++i) {
    const auto found = lanes_.find(batch.parts[i].lane);
    if (found == lanes_.end()) continue;  // closed while it ran
    // A lane with a failed step runs no more, whichever hop or rank it failed at.
    const Status& failed = status.ok() ? outputs[i].result.error : status;
    if (!failed.ok()) {
      Break(found->first, found->second, failed, std::nullopt);
    } else {
      SendOutput(found->second, batch.parts[i], outputs[i]);
    }
  }
}

void WorkerCore::SendOutput(const Lane& lane, const ReadyBatch::Part& part, PartOutput& output) {
  if (lane.open.rank != 0) return;
  if (lane.last()) return Emit(SendUp{StepDone{part.lane, std::move(output.result)}});
  const auto rows = std::make_shared<const std::vector<std::byte>>(std::move(output.rows));
  const bool decode = IsDecode(*part.plan);
  for (const WorkerAddress& next : lane.open.hops[static_cast<size_t>(lane.open.hop) + 1].ranks) {
    Emit(SendRows{next, part.lane, part.plan->id, decode, rows});
  }
}

}  // namespace millrace::cluster
