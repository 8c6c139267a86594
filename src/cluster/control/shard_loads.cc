#include "cluster/control/shard_loads.h"

#include <algorithm>
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
    outbox_.Send(*slot.worker,
                 LoadShard{.shard = slot.shard,
                           .group = group,
                           .layers = stage.plan.layers,
                           .rank = {static_cast<int>(rank), static_cast<int>(stage.ranks.size())},
                           .ranks = ranks,
                           .sources = SourcesFor(*slot.worker, stage.plan.layers, *layouts.front()),
                           .model_fingerprint = options_.model_fingerprint,
                           .max_batched_tokens = options_.max_batched_tokens,
                           .max_model_len = options_.max_model_len});
    // After the load, so that the worker can keep the weights and rebuild only the collective.
    if (old != ShardId()) Unload(old);
  }
}

// Peers that a worker can copy weights from instead of reading them from disk: first those that
// have loaded some of these layers, then those that have any weights of the model.
std::vector<WorkerAddress> ShardLoads::SourcesFor(WorkerId worker, LayerRange layers,
                                                  const Layout& in_force) const {
  std::set<WorkerId> holders;
  for (const LayoutStage& stage : in_force.stages) {
    if (stage.plan.layers.Overlap(layers).size() <= 0) continue;
    for (const Slot& slot : stage.ranks) {
      if (slot.worker && slot.loaded) holders.insert(*slot.worker);
    }
  }
  std::vector<WorkerAddress> near, far;
  for (const auto& [id, member] : members_.all()) {
    if (id == worker) continue;
    const bool holds = holders.contains(id);
    if (!holds && member.join.identity.model_fingerprint.empty()) continue;
    (holds ? near : far).push_back(member.address);
  }
  near.insert(near.end(), far.begin(), far.end());
  if (near.size() > ShardLoadOptions::kWeightSourcesMax) {
    near.resize(ShardLoadOptions::kWeightSourcesMax);
  }
  return near;
}

void ShardLoads::WorkerLost(WorkerId worker) {
  std::erase_if(shards_, [&](const auto& entry) { return entry.second == worker; });
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
