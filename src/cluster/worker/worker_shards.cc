#include "cluster/worker/worker_shards.h"

#include <algorithm>
#include <utility>

namespace millrace::cluster {

WorkerShards::Shard* WorkerShards::Find(ShardId id) {
  const auto found = shards_.find(id);
  return found == shards_.end() ? nullptr : &found->second;
}

const WorkerShards::Shard* WorkerShards::Find(ShardId id) const {
  const auto found = shards_.find(id);
  return found == shards_.end() ? nullptr : &found->second;
}

void WorkerShards::Add(LoadShard load) {
  const ShardId id = load.shard;
  shards_.emplace(id, Shard{.load = std::move(load)});
}

void WorkerShards::Orphan() {
  for (auto& [id, shard] : shards_) {
    shard.orders.clear();
    shard.orphan = true;
  }
}

std::vector<ShardId> WorkerShards::EraseOrphans(bool used_too) {
  std::vector<ShardId> loaded;
  std::erase_if(shards_, [&](const auto& entry) {
    const auto keeps_some = [&](const auto& e) {
      return !e.second.loaded && !e.second.orphan && HasPartOf(entry.second, e.second.load);
    };
    if (!entry.second.orphan) return false;
    if (!used_too && std::ranges::any_of(shards_, keeps_some)) return false;
    if (entry.second.loaded) loaded.push_back(entry.first);
    return true;
  });
  return loaded;
}

std::vector<HeldShard> WorkerShards::Held() const {
  std::vector<HeldShard> held;
  for (const auto& [id, shard] : shards_) {
    if (shard.loaded) held.push_back({shard.load.layers, shard.load.rank});
  }
  return held;
}

std::optional<ShardId> WorkerShards::WithWeightsOf(const LoadShard& load) const {
  std::optional<ShardId> newest;
  for (const auto& [id, shard] : shards_) {
    if (shard.loaded && shard.load.layers == load.layers && shard.load.rank == load.rank &&
        shard.load.max_batched_tokens >= load.max_batched_tokens) {
      newest = id;
    }
  }
  return newest;
}

bool WorkerShards::HasPartOf(const Shard& shard, const LoadShard& load) {
  return shard.loaded && shard.load.rank == load.rank &&
         shard.load.layers.Overlap(load.layers).size() > 0;
}

bool WorkerShards::AnyHasPartOf(const LoadShard& load) const {
  return std::ranges::any_of(shards_, [&](const auto& e) { return HasPartOf(e.second, load); });
}

bool WorkerShards::AnyLoads() const {
  return std::ranges::any_of(shards_, [](const auto& entry) { return !entry.second.loaded; });
}

std::vector<ShardId> WorkerShards::ByTurn() const {
  std::vector<std::pair<uint64_t, ShardId>> order;
  for (const auto& [id, shard] : shards_) order.emplace_back(shard.turn, id);
  std::ranges::sort(order);
  std::vector<ShardId> ids;
  for (const auto& [turn, id] : order) ids.push_back(id);
  return ids;
}

// A tensor-parallel shard of an earlier session has lost its group.
bool WorkerShards::Wants(ShardId id) const {
  const Shard* shard = Find(id);
  return shard != nullptr && (!shard->orphan || shard->load.rank.size == 1);
}

size_t WorkerShards::orphans() const {
  return static_cast<size_t>(
      std::ranges::count_if(shards_, [](const auto& entry) { return entry.second.orphan; }));
}

}  // namespace millrace::cluster
