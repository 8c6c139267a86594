// WorkerShards: the weights that a worker holds or is loading. Those of an earlier session are
// orphans: they stay for a controller that loads some of the same weights, until a load needs their
// memory.
//
// Owned by WorkerCore, which acts on what these methods return: one thread at a time.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "core/worker_messages.h"
#include "stage/stage.h"

namespace millrace::cluster {

class WorkerShards {
 public:
  struct Shard {
    LoadShard load;
    bool loaded = false;
    stage::StageLimits limits;      // if loaded
    bool orphan = false;            // of an earlier session; its weights may be reused
    std::deque<BatchOrder> orders;  // from rank 0, if this is another rank
    uint64_t turn = 0;              // when it last ran
  };

  // nullptr: there is no such shard.
  Shard* Find(ShardId id);
  const Shard* Find(ShardId id) const;
  void Add(LoadShard load);
  void Erase(ShardId id) { shards_.erase(id); }

  // The session is over: all become orphans, and orders to run their batches are void.
  void Orphan();
  // Erases orphans, but not those that a load in progress can keep a part of, unless `used_too`.
  // Returns the loaded ones, whose memory is to be freed.
  std::vector<ShardId> EraseOrphans(bool used_too = false);

  // What `Join` tells a controller.
  std::vector<HeldShard> Held() const;
  // A loaded shard with all weights of this load; nullopt: none.
  std::optional<ShardId> WithWeightsOf(const LoadShard& load) const;
  // Whether some shard has layers that this load need not read.
  bool AnyHasPartOf(const LoadShard& load) const;
  bool AnyLoads() const;
  // By the turn of each, the one that has waited longest first.
  std::vector<ShardId> ByTurn() const;
  // As of WorkerCore::wants.
  bool Wants(ShardId id) const;
  size_t orphans() const;
  size_t size() const { return shards_.size(); }

 private:
  static bool HasPartOf(const Shard& shard, const LoadShard& load);

  std::map<ShardId, Shard> shards_;
};

}  // namespace millrace::cluster
