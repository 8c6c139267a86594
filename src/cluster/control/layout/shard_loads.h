// ShardLoads: the shards that workers have loaded or are loading, and the orders to load and unload
// them. A layout says which shard each slot waits for; this is what was asked of the workers.
//
// Owned by Deployment. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/control/layout/layout.h"
#include "cluster/control/parts/id_source.h"
#include "cluster/control/parts/link_probes.h"
#include "cluster/control/parts/membership.h"
#include "cluster/control/parts/outbox.h"

namespace millrace::cluster {

struct ShardLoadOptions {
  static constexpr size_t kWeightSourcesMax = 16;  // for one shard

  // The same in every order to load.
  std::string model_fingerprint;
  int max_batched_tokens = 0;
  int max_model_len = 0;
  uint64_t secret = 0;  // random; for the ids of groups

  const LinkProbes* links = nullptr;  // between workers, as measured; outlives ShardLoads
};

class ShardLoads {
 public:
  // The references outlive this object.
  ShardLoads(ShardLoadOptions options, const Membership& members, IdSource& ids, Outbox& outbox)
      : options_(std::move(options)), members_(members), ids_(ids), outbox_(outbox) {}

  // Tells the workers of the stage to load it, unless all of them were told. A single rank shares
  // the shard of the same layers on the same worker in the other layout. `layouts`: the one in
  // force, and then the next one if there is one; the stage is in one of them.
  // REQUIRES: every rank has a worker.
  void Request(LayoutStage& stage, const std::vector<Layout*>& layouts);

  // The shard was asked for, and neither it nor its worker is gone.
  bool Has(ShardId shard) const { return shards_.contains(shard); }
  std::optional<WorkerId> HolderOf(ShardId shard) const {
    const auto found = shards_.find(shard);
    return found == shards_.end() ? std::nullopt : std::optional(found->second);
  }

  void WorkerLost(WorkerId worker);
  // The worker could not load the shard.
  void Failed(ShardId shard) { shards_.erase(shard); }
  // The shard is not wanted any more although its worker may still be waiting for other ranks, and
  // can load nothing else meanwhile. SendCancelled tells the worker.
  void Cancel(ShardId shard) { cancelled_.push_back(shard); }
  void SendCancelled();
  void UnloadAllBut(const std::set<ShardId>& needed);

  // Crashes with the reason if a shard is on a worker that is no member.
  void CheckIntegrity() const;

 private:
  std::vector<WorkerAddress> SourcesFor(WorkerId worker, LayerRange layers, TensorRank rank,
                                        const std::vector<Layout*>& layouts);
  int SpeedClass(WorkerId from, WorkerId to) const;
  void Unload(ShardId shard);

  const ShardLoadOptions options_;
  const Membership& members_;
  IdSource& ids_;
  Outbox& outbox_;
  std::map<ShardId, WorkerId> shards_;
  std::vector<ShardId> cancelled_;
  std::map<WorkerId, size_t> asked_first_;  // loads that this worker was the first source of
};

}  // namespace millrace::cluster
