// RecoverableKvStore: KV that requests have in pipelines that no longer run them, until they have
// fetched it. It is in a lost pipeline with surviving hops, in a retiring pipeline, in the prefill
// pipeline that hands the request over, or at the source of a migration that copies its last part.
//
// A lost pipeline runs no more steps, but its surviving workers keep it open until its requests
// have fetched their KV or ended. Only the layers whose KV cannot be fetched compute it again: the
// hop before them has cached the activations that enter them (stage/activation_caching_stage.h),
// and the layers after them have their KV. The next pipeline may split the layers differently. This
// is an optimization. If it fails or comes too late, every layer computes the tokens again.
//
// Owned by the controller, which holds the blocks in the schedulers of pipelines that still run.
// Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/clock.h"
#include "cluster/control/parts/bit_class.h"
#include "cluster/control/parts/outbox.h"
#include "cluster/control/parts/renewal_timer.h"
#include "cluster/control/transfers/kv_pulls.h"
#include "core/worker_messages.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

// What one request has left.
struct RecoverableKv {
  PipelineId pipeline;
  BitClass bits;                              // of that pipeline
  std::vector<sched::SequenceKv> kv;          // by sequence, in that pipeline
  std::optional<LayerRange> lacking = {};     // layers that do not have all of the KV
  std::vector<BlockIndex> held = {};          // blocks held by a pipeline that still runs
  bool moves = false;                         // the controller moves it: nothing is lost so far
  bool hands_over = false;                    // from prefill to decode
  bool too_slow = false;                      // to fetch, for the pipeline that was tried last
  std::optional<FetchedLayers> fetched = {};  // by all ended pulls into the last pipeline
  RenewalTimer renewal = {};

  int tokens() const;                             // the maximum over its sequences
  int64_t distinct_tokens(int block_size) const;  // blocks that sequences share count once
};

class RecoverableKvStore {
 public:
  // `outbox` outlives this object.
  explicit RecoverableKvStore(Outbox& outbox) : outbox_(outbox) {}

  // The request leaves KV, or more KV in the same pipeline. REQUIRES: it has left none in another.
  RecoverableKv& Leave(RequestId id, RecoverableKv kv);
  RecoverableKv* Find(RequestId id);
  const RecoverableKv* Find(RequestId id) const;
  // The KV was fetched, cannot be fetched, or is not needed. REQUIRES: Find. The surviving hops of
  // a lost pipeline close with the last KV there.
  void Drop(RequestId id);
  // The requests with KV in the pipeline.
  std::vector<RequestId> In(PipelineId pipeline) const;
  const std::map<RequestId, RecoverableKv>& all() const { return kv_; }
  bool Any(PipelineId pipeline) const { return waiters_.contains(pipeline); }
  int moving() const;
  // The requests whose leases are to be renewed.
  std::vector<RequestId> DueForRenewal(Time now, Duration lease);

  // The pipeline is lost, and these hops survive it. They stay open until this time while requests
  // have KV there.
  void Survives(PipelineId pipeline, std::vector<PipelineHop> hops, Time until);
  void Extend(PipelineId pipeline, Time until);
  // Null: the pipeline is not lost, or nothing of it is kept.
  const std::vector<PipelineHop>* SurvivingHops(PipelineId pipeline) const;
  // Lost pipelines whose time is over, or that `there` has no hop of.
  std::vector<PipelineId> Expired(Time now,
                                  const std::function<bool(const PipelineHop&)>& there) const;
  // Every hop that survives a lost pipeline.
  void ForEachSurvivingHop(const std::function<void(const PipelineHop&)>& visit) const;
  std::optional<PipelineId> AnyLost() const;

  // Crashes with the reason if the tables do not agree with each other. `runs`: the pipelines that
  // are not lost; `requests`: those that have not ended.
  void CheckIntegrity(const std::function<bool(PipelineId)>& runs,
                      const std::function<bool(RequestId)>& requests) const;

 private:
  struct Surviving {
    std::vector<PipelineHop> hops;
    Time until;
  };

  Outbox& outbox_;
  std::map<RequestId, RecoverableKv> kv_;
  std::map<PipelineId, std::set<RequestId>> waiters_;  // the requests of kv_
  std::map<PipelineId, Surviving> surviving_;          // of lost pipelines
};

}  // namespace millrace::cluster
