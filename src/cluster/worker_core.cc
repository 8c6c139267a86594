// Sessions, shards, lanes and transfers; the steps are in worker_steps.cc.
#include "cluster/worker_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {
namespace {

// A table from token 0 that has a block of the lane for each of `tokens`.
bool BlocksHold(const OpenLane& lane, const std::vector<BlockIndex>& blocks, int tokens) {
  return tokens >= 0 && tokens <= std::ssize(blocks) * lane.block_size &&
         std::ranges::all_of(blocks, [&](BlockIndex b) { return b >= 0 && b < lane.num_blocks; });
}

}  // namespace

WorkerCore::WorkerCore(WorkerCoreOptions options) : options_(std::move(options)) {}

void WorkerCore::SessionUp(Time) {
  Join join = options_.join;
  for (const auto& [id, shard] : shards_) {
    if (shard.loaded) join.held.push_back({shard.load.layers, shard.load.rank});
  }
  Emit(SendUp{std::move(join)});
}

// Its requests are the next controller's to replay: what these lanes hold belongs to nobody now.
void WorkerCore::SessionDown(Time) {
  worker_.reset();
  while (!lanes_.empty()) EraseLane(lanes_.begin()->first);
  for (auto& [id, shard] : shards_) {
    shard.orders.clear();
    shard.orphan = true;
  }
}

void WorkerCore::FromController(ToWorker message, Time now) {
  const bool greeting =
      std::holds_alternative<Welcome>(message) || std::holds_alternative<Refused>(message);
  if (!worker_ && !greeting) {
    ++counters_.refused;
    return;
  }
  std::visit([&](auto& m) { On(m, now); }, message);
}

void WorkerCore::FromPeer(PeerMessage message, Time now) {
  std::visit([&](auto& m) { On(m, now); }, message);
}

// A controller of an older term has been replaced and does not know it yet.
void WorkerCore::On(const Welcome& message, Time) {
  if (message.term < term_) {
    ++counters_.refused;
    Emit(EndSession{fmt::format("a controller of term {} was replaced by one of term {}",
                                message.term.value(), term_.value())});
    return;
  }
  term_ = message.term;
  worker_ = message.worker;
  heartbeat_every_ = message.heartbeat_every;
}

void WorkerCore::On(const Refused& message, Time) {
  Emit(EndSession{message.reason.message(), !message.retry});
}

void WorkerCore::On(const Leave& message, Time) { Emit(EndSession{message.reason, true}); }

void WorkerCore::On(LoadShard& message, Time) {
  if (shards_.contains(message.shard)) return;
  // Orphans are kept for a controller that asks for the same; their memory is another one's.
  const auto same_weights = [&](const Shard& shard) {
    return shard.loaded && shard.load.layers == message.layers && shard.load.rank == message.rank &&
           shard.load.max_batched_tokens >= message.max_batched_tokens;
  };
  if (std::ranges::none_of(shards_, [&](const auto& e) { return same_weights(e.second); })) {
    DropOrphans();
  }
  if (shards_.size() >= WorkerCoreOptions::kShardsMax) {
    Emit(SendUp{ShardLoaded{message.shard, ResourceExhausted(fmt::format(
                                               "this worker holds {} shards, the limit is {}",
                                               shards_.size(), WorkerCoreOptions::kShardsMax))}});
    return;
  }
  StartLoad start{message, std::nullopt};
  for (const auto& [id, shard] : shards_) {
    if (same_weights(shard)) start.same_as = id;
  }
  shards_.emplace(message.shard, Shard{.load = std::move(message), .same_as = start.same_as});
  Emit(std::move(start));
}

void WorkerCore::LoadEnded(const ShardLoaded& loaded) {
  const auto found = shards_.find(loaded.shard);
  if (found == shards_.end()) return Emit(DropShard{loaded.shard});  // unloaded meanwhile
  const TensorRank rank = found->second.load.rank;
  found->second.loaded = loaded.status.ok();
  found->second.same_as.reset();
  if (!loaded.status.ok()) shards_.erase(found);
  Emit(SendUp{loaded});
  if (loaded.status.ok()) DropOrphans();
  // The weights' sources are gone, or never were: a new session has those that are there by then.
  if (loaded.status.code() == StatusCode::kUnavailable && rank.size == 1) {
    Emit(EndSession{loaded.status.message()});
  }
}

void WorkerCore::DropOrphans() {
  std::erase_if(shards_, [&](const auto& entry) {
    const auto reads_it = [&](const auto& e) { return e.second.same_as == entry.first; };
    if (!entry.second.orphan || std::ranges::any_of(shards_, reads_it)) return false;
    if (entry.second.loaded) Emit(DropShard{entry.first});
    return true;
  });
}

size_t WorkerCore::orphans() const {
  return static_cast<size_t>(
      std::ranges::count_if(shards_, [](const auto& entry) { return entry.second.orphan; }));
}

bool WorkerCore::wants(ShardId shard) const {
  const auto found = shards_.find(shard);
  return found != shards_.end() && (!found->second.orphan || found->second.load.rank.size == 1);
}

void WorkerCore::LoadProgress(const ShardProgress& progress) {
  if (shards_.contains(progress.shard)) Emit(SendUp{progress});
}

void WorkerCore::On(const UnloadShard& message, Time) {
  const auto found = shards_.find(message.shard);
  if (found == shards_.end()) return;
  std::vector<LaneId> gone;
  for (const auto& [id, lane] : lanes_) {
    if (lane.shard == message.shard) gone.push_back(id);
  }
  for (LaneId id : gone) EraseLane(id);
  const bool loaded = found->second.loaded;
  shards_.erase(found);
  if (loaded) Emit(DropShard{message.shard});
}

Status WorkerCore::CheckOpen(const OpenLane& message) const {
  if (lanes_.size() >= WorkerCoreOptions::kLanesMax) {
    return ResourceExhausted(fmt::format("{} lanes are open, the limit", lanes_.size()));
  }
  if (message.hop < 0 || message.hop >= std::ssize(message.hops)) {
    return InvalidArgument(fmt::format("hop {} of {}", message.hop, message.hops.size()));
  }
  const LaneHop& hop = message.hops[static_cast<size_t>(message.hop)];
  if (message.rank < 0 || message.rank >= std::ssize(hop.ranks) ||
      hop.shards.size() != hop.ranks.size()) {
    return InvalidArgument(fmt::format("rank {} of {}", message.rank, hop.ranks.size()));
  }
  const auto shard = shards_.find(hop.shards[static_cast<size_t>(message.rank)]);
  if (shard == shards_.end() || !shard->second.loaded) {
    return FailedPrecondition("the lane's layers are not loaded here");
  }
  const LayerRange held = shard->second.load.layers;
  if (hop.layers.begin < held.begin || hop.layers.end > held.end || hop.layers.size() < 1) {
    return InvalidArgument(fmt::format("layers [{}, {}) are not within [{}, {})", hop.layers.begin,
                                       hop.layers.end, held.begin, held.end));
  }
  if (message.block_size < 1 || message.num_blocks < 1 || message.num_host_blocks < 0) {
    return InvalidArgument("a lane without blocks");
  }
  return OkStatus();
}

void WorkerCore::On(OpenLane& message, Time) {
  const LaneId id = message.lane;
  if (lanes_.contains(id)) return;
  if (Status ok = CheckOpen(message); !ok.ok()) {
    ++counters_.refused;
    return Emit(SendUp{LaneOpened{id, std::move(ok)}});
  }
  Lane lane;
  lane.open = std::move(message);
  lane.shard = lane.hop().shards[static_cast<size_t>(lane.open.rank)];
  Emit(StartLane{lane.shard,
                 id,
                 {.layers = lane.hop().layers,
                  .block_size = lane.open.block_size,
                  .num_blocks = lane.open.num_blocks,
                  .num_host_blocks = lane.open.num_host_blocks,
                  .first = lane.first(),
                  .last = lane.last(),
                  .eos_token_ids = lane.open.eos_token_ids,
                  .keep_rows_at = lane.open.keep_rows_at}});
  lanes_.emplace(id, std::move(lane));
}

void WorkerCore::LaneStarted(LaneId id, const Status& status) {
  const auto found = lanes_.find(id);
  if (found == lanes_.end()) return;
  found->second.started = status.ok();
  if (!status.ok()) lanes_.erase(found);
  Emit(SendUp{LaneOpened{id, status}});
}

void WorkerCore::On(const CloseLane& message, Time) {
  if (lanes_.contains(message.lane)) EraseLane(message.lane);
}

void WorkerCore::EraseLane(LaneId id) {
  const auto found = lanes_.find(id);
  Emit(DropLane{found->second.shard, id});
  lanes_.erase(found);
  std::erase_if(pulls_, [&](const auto& pull) { return pull.second == id; });
}

void WorkerCore::On(const ExposeKv& message, Time) {
  const auto found = lanes_.find(message.handle.lane);
  if (found == lanes_.end()) {
    ++counters_.stale_steps;
    return;
  }
  if (!BlocksHold(found->second.open, message.blocks, message.tokens)) {
    ++counters_.refused;
    return;
  }
  Emit(Expose{found->second.shard, found->second.hop().layers, message});
}

void WorkerCore::On(const ReleaseKv& message, Time) { Emit(Unexpose{message.handle}); }

void WorkerCore::On(PullKv& message, Time) {
  const TransferId id = message.transfer;
  const auto found = lanes_.find(message.lane);
  if (found == lanes_.end()) {
    return Emit(SendUp{PullDone{id, FailedPrecondition("the lane is not open here")}});
  }
  if (message.first_token < 0 || message.first_token > message.end_token ||
      !BlocksHold(found->second.open, message.blocks, message.end_token)) {
    ++counters_.refused;
    return Emit(SendUp{PullDone{id, InvalidArgument("blocks that do not hold the tokens")}});
  }
  const LayerRange here = found->second.hop().layers;
  const LayerRange layers = message.layers.value_or(here);
  if (!here.Contains(layers)) {
    ++counters_.refused;
    return Emit(SendUp{PullDone{id, InvalidArgument("layers that the lane does not have here")}});
  }
  pulls_.emplace(id, message.lane);
  Emit(StartPull{found->second.shard, layers, std::move(message)});
}

void WorkerCore::PullEnded(const PullDone& done) {
  if (pulls_.erase(done.transfer) > 0) Emit(SendUp{done});
}

void WorkerCore::PeerLost(Incarnation peer, const Status& reason) {
  for (auto& [id, lane] : lanes_) {
    for (const LaneHop& hop : lane.open.hops) {
      const auto rank = std::ranges::find(hop.ranks, peer, &WorkerAddress::incarnation);
      if (rank != hop.ranks.end()) Break(id, lane, reason, rank->worker);
    }
  }
}

void WorkerCore::Break(LaneId id, Lane& lane, const Status& reason,
                       std::optional<WorkerId> suspect) {
  lane.failed = lane.failed || !suspect;
  if (std::exchange(lane.broken, true)) return;
  Emit(SendUp{LaneBroken{id, reason, suspect}});
}

void WorkerCore::AnnounceLeaving(std::optional<Duration> in) { Emit(SendUp{Leaving{in}}); }

Heartbeat WorkerCore::MakeHeartbeat(Time now) {
  Heartbeat beat{.incarnation = options_.join.address.incarnation,
                 .sequence = ++heartbeats_,
                 .steps_done = counters_.batches};
  // At least one while something runs: zero says idle.
  if (running_) beat.batch_age_ms = std::max<int64_t>(1, (now - running_since_).ns / 1'000'000);
  for (const auto& [id, lane] : lanes_) beat.queued_steps += std::ssize(lane.steps);
  return beat;
}

void WorkerCore::TakeActions(std::vector<WorkerAction>& actions) {
  std::ranges::move(actions_, std::back_inserter(actions));
  actions_.clear();
}

}  // namespace millrace::cluster
