// KvMemory: how many blocks each pipeline may hold, so that the pipelines of a worker together hold
// no more KV than the worker has. The ledger (kv/block_ledger.h) has an account per worker and a
// pool per pipeline; this part applies its decisions to the pipelines' schedulers.
//
// Each request reserves the blocks that it will probably use before it is added to a pipeline. What
// is reserved on a worker tells the router where there is room. There are two kinds of pipelines.
// Those that share their workers with other routes of the plan add a request only if its blocks can
// be reserved. What a request uses beyond that is claimed as it grows. All other pipelines have
// their workers to themselves and take what they need, whatever is reserved. They share them only
// while the plan changes, with pipelines of the earlier plan and with what lost pipelines left.
// Then each keeps what it uses and some more. EndRound names the pipelines that can do nothing for
// lack of blocks. docs/decisions/0003-admission.md explains why nothing waits forever.
//
// The accounts are never stored: a controller that takes over begins with none, because the workers
// have closed the pipelines of the one before.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cluster/control/layout/layout.h"
#include "cluster/control/parts/outbox.h"
#include "core/worker_messages.h"
#include "kv/block_ledger.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

// The blocks of a pipeline that has the workers of its route to itself. Pipelines that share them
// number as many blocks, and may hold fewer.
int BlocksAlone(const Layout& layout, const Route& route, const sched::SchedulerOptions& options);

class KvMemory {
 public:
  // A worker of a pipeline.
  struct Rank {
    WorkerId worker;
    int64_t kv_bytes = 0;         // as it reported when it loaded its layers
    int64_t bytes_per_block = 0;  // of this pipeline, at this worker
  };

  // The ranks of a pipeline on this route.
  static std::vector<Rank> RanksOf(const Layout& layout, const Route& route, int block_size);

  explicit KvMemory(Outbox& outbox);

  // `scheduler` outlives the pool or its Survive.
  // `shares`: with other routes of the plan, so requests are added only if their blocks can be
  // reserved.
  void Open(PipelineId pipeline, std::span<const Rank> ranks, int blocks_max, bool shares,
            sched::Scheduler& scheduler);
  // Ignored if it is closed.
  void Close(PipelineId pipeline);
  // Its requests leave it: they need no reservations any more.
  void Retire(PipelineId pipeline);
  // It runs no more and its requests leave it, but the survivors keep the blocks that are in use
  // now. Ends with Close. REQUIRES: its scheduler still has the requests.
  void Survive(PipelineId pipeline, std::span<const PipelineHop> survivors);
  // Its memory is gone, and with it every claim on it.
  void LoseWorker(WorkerId worker);

  // Reserves blocks for a request that is to be added to the pipeline. False: it must wait, for
  // room, or until another request of the pipeline ends.
  bool Reserve(PipelineId pipeline, RequestId request, int blocks);
  // Bytes on the worker that its pipelines have reserved or use.
  int64_t claimed(WorkerId worker) const;
  // The request has left the pipeline. Ignored if it has no reservation there.
  void Release(PipelineId pipeline, RequestId request);

  // Call it before the scheduler forms steps: the pipeline gets more blocks if its requests need
  // them, and its workers are told which blocks it no longer holds. Returns how often they have
  // been told so far (PipelineStep::returns).
  uint64_t BeforeSteps(PipelineId pipeline);
  // Call it after the scheduler has formed what steps it can.
  void AfterSteps(PipelineId pipeline);
  // Call it at the end of a round of steps: tells the workers of pipelines that gave blocks up.
  // Returns the pipelines that can do nothing, because others hold the blocks that they need.
  std::set<PipelineId> EndRound();

  // The blocks that it may hold.
  int limit(PipelineId pipeline) const { return pools_.at(pipeline).limit; }
  // What holds memory that this pipeline could use and is the first to be ended for it: a lost
  // pipeline, else a retiring one.
  std::optional<PipelineId> GivesWayTo(PipelineId pipeline) const;
  bool ShareMemory(PipelineId a, PipelineId b) const {
    return ledger_.ShareMemory(PoolOf(a), PoolOf(b));
  }
  void CheckIntegrity() const;

 private:
  struct Pool {
    sched::Scheduler* scheduler = nullptr;  // null: it survives a lost pipeline
    std::vector<Rank> ranks;
    int max = 0;
    int limit = 0;  // as the scheduler knows it
    bool shares = false, retiring = false;
    int reserved = 0;  // the sum of `requests`
    std::map<RequestId, int> requests;
    int used = 0;          // blocks in use when that was last asked
    int claimed = 0;       // blocks counted in claimed_
    uint64_t returns = 0;  // ReturnBlocks messages so far

    // Whether it takes what it needs, but may hold fewer blocks than it would have alone.
    bool GrowsOnDemand() const { return !shares && limit < max; }
  };

  static kv::PoolId PoolOf(PipelineId pipeline) { return kv::PoolId(pipeline.value()); }
  void EndReservations(PipelineId pipeline, Pool& pool);
  void Claim(Pool& pool, int blocks);
  void GrowBeyondReserved(PipelineId pipeline, Pool& pool);
  void Grow(PipelineId pipeline, Pool& pool);
  void SendReturned(PipelineId pipeline, Pool& pool);
  void Apply(PipelineId pipeline, Pool& pool);
  int Shrink(PipelineId pipeline, int limit);

  Outbox& outbox_;
  std::map<PipelineId, Pool> pools_;
  std::map<WorkerId, int64_t> claimed_;    // bytes
  std::set<PipelineId> shrunk_, starved_;  // in this round
  kv::BlockLedger ledger_;
};

}  // namespace millrace::cluster
