// Leases on KV that another pipeline will pull. The source pipeline keeps the KV for `hold_limit`:
// its scheduler pins the blocks, and its workers allow reads. Both are renewed while heartbeats of
// the pulling workers arrive, however slow the pull is: the request may wait for blocks there, or
// the pull for the network. Without heartbeats the lease expires.
//
// Two pipelines must not wait for blocks that each keeps for the other. So blocks that no running
// request owns are kept longer only where no pipeline waits in the opposite direction: for a
// hand-over from prefill, and in a retiring pipeline (docs/decisions/0006).
#include <algorithm>

#include "cluster/control/controller_core.h"

namespace millrace::cluster {
namespace {

// A lease is renewed after this fraction of its duration: one quarter.
constexpr int64_t kRenewAfterPart = 4;

}  // namespace

// `renew_at` is unset if the lease began after the last tick.
bool ControllerCore::RenewalDue(Time& renew_at, Time now) const {
  const bool due = renew_at != Time{} && now >= renew_at;
  if (due || renew_at == Time{}) {
    renew_at = now + Duration{options_.hold_limit.ns / kRenewAfterPart};
  }
  return due;
}

bool ControllerCore::PullerAlive(PipelineId to, Time now) const {
  const auto pipeline = pipelines_.find(to);
  if (pipeline == pipelines_.end()) return false;
  return std::ranges::all_of(pipeline->second.workers, [&](const std::vector<WorkerId>& hop) {
    return std::ranges::all_of(hop, [&](WorkerId id) { return members_.Alive(id, now); });
  });
}

void ControllerCore::RenewLeases(Time now) {
  for (auto& [id, move] : moves_) {
    if (PullerAlive(move.to, now) && RenewalDue(move.renew_at, now)) RenewMove(id, move, now);
  }
  for (const auto& [pipeline, waiters] : waiters_) {
    for (RequestId id : waiters) RenewLeft(id, requests_.at(id), now);
  }
  for (auto& [id, job] : pull_jobs_) {
    if (job.left && PullerAlive(job.to, now) && RenewalDue(job.renew_at, now)) {
      RenewFetch(job, now);
    }
  }
}

// An expired lease is not renewed, because its blocks may belong to another request by now. This
// cannot happen in a lost pipeline, nor while the request still runs at the source.
void ControllerCore::RenewMove(RequestId id, Move& move, Time now) {
  if (move.held_until && now > *move.held_until) return;
  if (Pipeline* from = Find(move.from)) {
    const auto info = from->scheduler->Inspect(id, now);
    const bool runs = info && info->state == sched::RequestState::kRunning;
    if (!move.held_until && !runs) return;  // preempted: its blocks are needed there
    const bool held = from->scheduler->ExtendHold(id, now, options_.hold_limit);
    if (!held && move.held_until) return;
  } else if (!surviving_stages_.contains(move.from)) {
    return;
  }
  if (move.held_until) move.held_until = now + options_.hold_limit;
  if (move.exported) ExportAgain(move.from, *move.exported);
  ++counters_.leases_renewed;
}

// Renews the lease on recoverable KV in a pipeline that still runs. The request is in another
// pipeline and will fetch it.
void ControllerCore::RenewLeft(RequestId id, Tracked& tracked, Time now) {
  RecoverableKv& left = *tracked.left;
  Pipeline* from = Find(left.pipeline);
  if (from == nullptr || !(from->retiring || from->role == StageRole::kPrefill)) return;
  if (left.renew_at == Time{}) {  // the lease has begun, perhaps before the request has a pipeline
    (void)RenewalDue(left.renew_at, now);
    return;
  }
  if (!tracked.pipeline || tracked.pipeline == left.pipeline) return;
  if (!PullerAlive(*tracked.pipeline, now)) return;
  if (!RenewalDue(left.renew_at, now)) return;
  if (!from->scheduler->ExtendHold(id, now, options_.hold_limit)) return;
  ++counters_.leases_renewed;
}

// Renews the lease for a pull of recoverable KV that is in progress.
void ControllerCore::RenewFetch(PullJob& job, Time now) {
  const PipelineId pipeline = job.left->pipeline;
  if (const auto surviving_stages = surviving_stages_.find(pipeline);
      surviving_stages != surviving_stages_.end()) {
    surviving_stages->second.until =
        std::max(surviving_stages->second.until, now + options_.hold_limit);
  }
  ExportAgain(pipeline, job.exported);
  ++counters_.leases_renewed;
}

void ControllerCore::ExportAgain(PipelineId pipeline, const ExportKv& exported) {
  const std::vector<PipelineHop>* hops = HopsOf(pipeline);
  if (hops == nullptr) return;
  for (const PipelineHop& hop : *hops) {
    if (!StillThere(hop)) continue;
    for (const WorkerAddress& rank : hop.ranks) Send(rank.worker, exported);
  }
}

}  // namespace millrace::cluster
