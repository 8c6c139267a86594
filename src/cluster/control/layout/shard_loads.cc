#include "cluster/control/layout/shard_loads.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace millrace::cluster {
namespace {

// The slot of the same worker and layers in another stage of one rank. Null: there is none that
// was told to load.
const Slot* TwinOf(const LayoutStage& stage, const std::vector<Layout*>& layouts) {
  for (const Layout* layout : layouts) {
    for (const LayoutStage& other : layout->stages) {
      if (&other == &stage || other.ranks.size() != 1) continue;
      if (other.plan.layers != stage.plan.layers) continue;
      const Slot& twin = other.ranks.front();
      if (twin.worker == stage.ranks.front().worker && twin.asked) return &twin;
    }
  }
  return nullptr;
}

// The layers of the range that this rank of a stage cannot keep, because the worker has not loaded
// them as the same rank.
std::set<int> LayersToLoad(WorkerId worker, LayerRange layers, TensorRank rank,
                           const std::vector<Layout*>& layouts) {
  std::set<int> lacks;
  for (int layer = layers.begin; layer < layers.end; ++layer) lacks.insert(layer);
  for (const Layout* layout : layouts) {
    for (const LayoutStage& stage : layout->stages) {
      if (std::ssize(stage.ranks) != rank.size) continue;
      const Slot& slot = stage.ranks[static_cast<size_t>(rank.rank)];
      if (slot.worker != worker || !slot.loaded) continue;
      for (int layer = stage.plan.layers.begin; layer < stage.plan.layers.end; ++layer) {
        lacks.erase(layer);
      }
    }
  }
  return lacks;
}

}  // namespace

void ShardLoads::Request(LayoutStage& stage, const std::vector<Layout*>& layouts) {
  if (std::ranges::all_of(stage.ranks, &Slot::asked)) return;
  if (stage.ranks.size() == 1) {
    if (const Slot* twin = TwinOf(stage, layouts)) {
      stage.ranks.front() = *twin;
      return;
    }
  }
  const uint64_t group = HashCounter(options_.secret, ids_.Next());
  std::vector<WorkerAddress> ranks;
  for (const Slot& slot : stage.ranks) ranks.push_back(members_.at(*slot.worker).address);
  for (size_t rank = 0; rank < stage.ranks.size(); ++rank) {
    Slot& slot = stage.ranks[rank];
    const ShardId old = std::exchange(slot.shard, ShardId(ids_.Next()));
    slot.asked = true;
    slot.loaded = false;
    shards_.emplace(slot.shard, *slot.worker);
    const TensorRank of{static_cast<int>(rank), static_cast<int>(stage.ranks.size())};
    outbox_.Send(*slot.worker,
                 LoadShard{.shard = slot.shard,
                           .group = group,
                           .layers = stage.plan.layers,
                           .rank = of,
                           .ranks = ranks,
                           .sources = SourcesFor(*slot.worker, stage.plan.layers, of, layouts),
                           .model_fingerprint = options_.model_fingerprint,
                           .max_batched_tokens = options_.max_batched_tokens,
                           .max_model_len = options_.max_model_len});
    // After the load, so that the worker can keep the weights and rebuild only the collective.
    if (old != ShardId()) Unload(old);
  }
}

// Peers that a worker can copy weights from instead of reading them from disk: first those that
// have loaded some of the layers that it lacks, then those that have any weights of the model. Of
// these, the nearest is first; of equally near ones, the one that was asked least often.
std::vector<WorkerAddress> ShardLoads::SourcesFor(WorkerId worker, LayerRange layers,
                                                  TensorRank rank,
                                                  const std::vector<Layout*>& layouts) {
  const std::set<int> lacks = LayersToLoad(worker, layers, rank, layouts);
  std::set<WorkerId> holders;
  for (const LayoutStage& stage : layouts.front()->stages) {
    const LayerRange has = stage.plan.layers;
    const auto needed = lacks.lower_bound(has.begin);
    if (needed == lacks.end() || *needed >= has.end) continue;
    for (const Slot& slot : stage.ranks) {
      if (slot.worker && slot.loaded) holders.insert(*slot.worker);
    }
  }
  const std::string& host = members_.at(worker).address.host_id;
  // Compared in order: less is better. Speeds within a factor of two are equal.
  using Distance = std::tuple<bool, bool, int, size_t>;
  std::vector<std::pair<Distance, WorkerId>> found;
  for (const auto& [id, member] : members_.all()) {
    if (id == worker) continue;
    const bool holds = holders.contains(id);
    if (!holds && member.join.identity.model_fingerprint.empty()) continue;
    const bool same_host = !host.empty() && member.address.host_id == host;
    found.push_back({{!holds, !same_host, -SpeedClass(id, worker), asked_first_[id]}, id});
  }
  std::ranges::sort(found);
  found.resize(std::min(found.size(), ShardLoadOptions::kWeightSourcesMax));
  std::vector<WorkerAddress> sources;
  for (const auto& [distance, id] : found) sources.push_back(members_.at(id).address);
  if (!found.empty()) ++asked_first_[found.front().second];
  return sources;
}

// The exponent of the measured bytes per second; 0: not measured.
int ShardLoads::SpeedClass(WorkerId from, WorkerId to) const {
  if (options_.links == nullptr) return 0;
  const auto link = options_.links->links().find({from, to});
  return link == options_.links->links().end() ? 0 : std::ilogb(link->second.bytes_per_s);
}

void ShardLoads::WorkerLost(WorkerId worker) {
  std::erase_if(shards_, [&](const auto& entry) { return entry.second == worker; });
  asked_first_.erase(worker);
}

void ShardLoads::Unload(ShardId shard) {
  const auto found = shards_.find(shard);
  if (found == shards_.end()) return;
  outbox_.Send(found->second, UnloadShard{shard});
  shards_.erase(found);
}

void ShardLoads::SendCancelled() {
  for (ShardId shard : std::exchange(cancelled_, {})) Unload(shard);
}

void ShardLoads::UnloadAllBut(const std::set<ShardId>& needed) {
  std::vector<ShardId> unused;
  for (const auto& [shard, worker] : shards_) {
    if (!needed.contains(shard)) unused.push_back(shard);
  }
  for (ShardId shard : unused) Unload(shard);
}

void ShardLoads::CheckIntegrity() const {
  for (const auto& [shard, worker] : shards_) {
    MR_CHECK(members_.Find(worker) != nullptr) << "shard " << shard << " is on a lost worker";
  }
}

}  // namespace millrace::cluster
