// Transfers: KV that changes pipelines. These layers' KV from those stages go into that pipeline,
// whatever the reason: a request is handed over from prefill to decode (DistServe section 4.3),
// migrates while it runs, or recovers what it has left in a lost or retiring pipeline.
//
// What a request has left is held under a lease (recoverable_kv.h) and pulled once the destination
// has blocks for it (kv_pulls.h). A migration copies most of it before that (migrations.h). If a
// transfer fails, the KV is computed again from the tokens.
//
// Owned by the controller, which chooses pipelines. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/control/layout/deployment.h"
#include "cluster/control/layout/kv_memory.h"
#include "cluster/control/parts/controller_counters.h"
#include "cluster/control/parts/copy_rate.h"
#include "cluster/control/parts/link_probes.h"
#include "cluster/control/parts/membership.h"
#include "cluster/control/pipelines/pipelines.h"
#include "cluster/control/routing/requests.h"
#include "cluster/control/transfers/kv_pulls.h"
#include "cluster/control/transfers/migrations.h"
#include "cluster/control/transfers/recoverable_kv.h"
#include "core/worker_messages.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

struct TransfersOptions {
  int num_layers = 0;
  int block_size = 0;
  size_t migrations_max = 16;
  Duration hold_limit;     // how long KV is kept for a puller that is silent
  Duration waiting_limit;  // how long surviving stages are kept for requests that wait
  uint64_t secret = 0;     // random; for the nonces of KV handles
  // Between workers, as measured; outlives Transfers. Null: links are not measured, and what can be
  // fetched is fetched.
  const LinkProbes* links = nullptr;
};

class Transfers {
 public:
  // A request that has left its pipeline, and what its next one gets.
  using Returned = std::pair<RequestId, sched::NewRequest>;

  // The references outlive this object.
  Transfers(TransfersOptions options, const Membership& members, const Deployment& deployment,
            Pipelines& pipelines, Requests& requests, KvMemory& memory, IdSource& ids,
            Outbox& outbox);

  // The prefill pipeline has finished the request's prompt, and its scheduler holds the KV until
  // the pipeline that decodes has fetched it, once for all sequences. `request`: what that pipeline
  // will get.
  void HandOver(Pipeline& from, const sched::NewRequest& request);
  // The request was taken out of a pipeline that still runs, whose scheduler holds its KV.
  void Leave(Pipeline& pipeline, RequestId id, const sched::DetachedRequest& request);
  // How many tokens of what the request has left `to` can fetch, by sequence. Empty: nothing, or
  // `to` computes them sooner. REQUIRES: the request waits.
  std::vector<int> ToFetch(RequestId id, const Pipeline& to);
  // The route of the prefill pipeline in which the request has left KV. Null: it has left none
  // there, or that pipeline is not of the plan in force.
  const Route* KvAt(RequestId id) const;
  // How long the KV of a prompt of this length probably takes from prefill to decode, as measured.
  // 0 before the first measurement.
  double HandOverSeconds(int64_t tokens) const {
    return pull_s_per_token_ * static_cast<double>(tokens);
  }
  // How many tokens of KV the workers copy per second in all, as measured. nullopt: none so far.
  std::optional<double> copied_tokens_per_s() const { return copy_rate_.tokens_per_s(); }
  // Drops the request's KV; the request has ended.
  void Drop(RequestId id);
  // Drops it; the request will be computed again.
  void GiveUp(RequestId id);
  // The same for all requests that have KV in the pipeline.
  void GiveUpIn(PipelineId pipeline);
  // Whether requests that are no longer in the pipeline have KV there.
  bool HasKvIn(PipelineId pipeline) const { return kv_.Any(pipeline); }
  // Gives up KV in the pipeline whose hold has expired.
  void GiveUpExpiredIn(PipelineId pipeline);

  // `from` continues to run the request while its KV is copied. Errors as of Migrations::Start;
  // kFailedPrecondition: its prompt is still being computed. kResourceExhausted: also if the
  // workers of `to` lack memory.
  Status Migrate(RequestId id, Pipeline& from, Pipeline& to, Time now);
  bool full() const { return migrations_.full(); }
  bool Migrates(RequestId id) const { return migrations_.Find(id) != nullptr; }
  // Whether it migrates or is handed over.
  bool Moves(RequestId id) const;
  int moving() const;
  // The destination drops the request. The source continues it, if it still has it.
  void Abandon(RequestId id, Time now);
  // Requests that migrate to retiring pipelines stay at their source, and can migrate again.
  void AbandonRetiring(Time now);
  // Pauses requests whose KV is copied. Returns those that no longer have a pipeline.
  std::vector<Returned> ContinuePauses(Time now);

  // Starts the pulls that the pipeline's scheduler has asked for.
  void StartPulls(Pipeline& to, Time now);
  // As of KvPulls.
  std::optional<WorkerId> PullerOf(TransferId transfer) const { return pulls_.PullerOf(transfer); }
  // REQUIRES: the pull has a puller.
  void Done(const PullDone& done, Time now);
  // Renews leases and ends expired ones. Call it at least once per heartbeat interval.
  void Tick(Time now);

  // Whether a worker of the pipeline drains. Its machine may be gone soon.
  bool IsLeaving(const Pipeline& pipeline) const;
  // Whether all workers of the hop still have its layers.
  bool StillThere(const PipelineHop& hop) const;
  // The pipeline is about to be closed because it is lost: records the KV that its requests have on
  // surviving hops. `failed`: the hop whose collective has failed. `suspect`: a worker that may be
  // gone.
  void Retain(Pipeline& pipeline, const PipelineHop* failed, std::optional<WorkerId> suspect,
              Time now);
  // These stay open although the pipeline is closed.
  std::vector<PipelineHop> SurvivingHops(PipelineId pipeline) const;
  void ForEachSurvivingHop(const std::function<void(const PipelineHop&)>& visit) const {
    kv_.ForEachSurvivingHop(visit);
  }
  // Frees the memory of surviving hops.
  void GiveUpSurviving();
  // The pipeline is closed.
  void Closed(PipelineId pipeline, Time now);
  // The request was to move to a pipeline that is lost.
  void TargetLost(RequestId id) { MoveFailed(id, false); }

  // Whether KV was dropped since the last call, so that a retiring pipeline may be empty now.
  bool TakeDropped() { return std::exchange(dropped_, false); }
  const TransferCounters& counters() const { return counters_; }
  // Moves that failed so that some KV was computed again.
  uint64_t recomputed() const { return recomputed_; }
  // Crashes with the reason if the tables do not agree with each other.
  void CheckIntegrity() const;

 private:
  void LeaveBehind(Pipeline& pipeline, RequestId id, sched::DetachedRequest here,
                   std::vector<BlockIndex> held);
  void ChangeOwner(Pipeline& from, Pipeline& to, RequestId id, Migrations::Paused paused);
  void MeasurePull(const PullDone& done, const sched::KvPull& pull);
  void CountHandOver(const KvPulls::Ended& ended, const Pipeline& to);
  void NotePull(const KvPulls::Ended& ended, Pipeline& to) const;
  bool StartRound(Pipeline& to, const sched::KvPull& pull);
  bool StartFetch(Pipeline& to, const sched::KvPull& pull, bool doubtful);
  void RoundEnded(Pipeline& to, const KvPulls::Ended& ended, Time now);
  void FetchEnded(Pipeline& to, const KvPulls::Ended& ended, Time now);
  void FetchFailed(Pipeline& to, RequestId id, Time now);
  void MoveFailed(RequestId id, bool recomputes);
  void RenewLeases(Time now);
  bool Renew(RequestId id, const RecoverableKv& left, Time now);
  bool StillIntact(RequestId id, const RecoverableKv& left) const;
  bool PullerAlive(PipelineId to, Time now) const;
  bool FetchIsBetter(const RecoverableKv& left, const std::vector<PipelineHop>& readable,
                     const Pipeline& to) const;
  PulledActivations ActivationsFrom(const Pipeline* pipeline) const;
  std::vector<PipelineHop> ReadableHops(PipelineId id) const;
  sched::Scheduler* SchedulerOf(PipelineId id) const;

  const TransfersOptions options_;
  const Membership& members_;
  const Deployment& deployment_;
  Pipelines& pipelines_;
  Requests& requests_;
  KvMemory& memory_;
  KvPulls pulls_;
  RecoverableKvStore kv_;
  Migrations migrations_;
  bool dropped_ = false;
  double pull_s_per_token_ = 0;  // a moving average, of single pulls
  CopyRate copy_rate_;
  TransferCounters counters_;
  uint64_t recomputed_ = 0;
};

}  // namespace millrace::cluster
