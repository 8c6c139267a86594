// Pipelines follow the layout: they open where its stages are up, and retire where it no longer has
// them. The requests of a retiring pipeline move to others with their KV (departure.h).
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {

// Brings the workers to what the deployment wants, and the pipelines to the layout in force.
void ControllerCore::Reconcile(Time now) {
  retire_ = transfers_.TakeDropped() || retire_;
  while (deployment_.due() || retire_) {
    if (deployment_.due()) FollowLayout(deployment_.Reconcile(InUse(), now), now);
    if (std::exchange(retire_, false)) RetirePipelines(now);
  }
}

Deployment::InUse ControllerCore::InUse() const {
  Deployment::InUse in_use;
  const auto add = [&](const PipelineHop& hop, std::set<WorkerId>& workers) {
    in_use.shards.insert(hop.shards.begin(), hop.shards.end());
    for (const WorkerAddress& rank : hop.ranks) workers.insert(rank.worker);
  };
  for (const auto& [id, pipeline] : pipelines_.all()) {
    for (const PipelineHop& hop : pipeline.hops) add(hop, in_use.running);
  }
  transfers_.ForEachSurvivingHop([&](const PipelineHop& hop) { add(hop, in_use.keeping); });
  return in_use;
}

void ControllerCore::FollowLayout(const Deployment::Changes& changes, Time now) {
  if (changes.switched) {
    pipelines_.RetireUnplanned(layout());
    before_plan_ = pipelines_.Flows();
  }
  if (changes.switched || changes.stages) {
    pipelines_.RetireClosing(layout());
    placements_.DropLost();
    requests_.TryQueue();
    retire_ = true;
  }
  OpenPipelines(now);
}

// Empties and closes retiring pipelines: running requests move, waiting ones leave, and then the
// pipeline closes.
void ControllerCore::RetirePipelines(Time now) {
  transfers_.AbandonRetiring(now);
  std::vector<PipelineId> empty;
  std::vector<std::pair<PipelineId, PipelineHop>> too_late;
  for (auto& [id, pipeline] : pipelines_.all()) {
    if (!pipeline.retiring) continue;
    const auto departure = DepartureOf(pipeline, members_, now);
    if (departure && departure->IsLastMoment() && pipeline.requests.size() > 0 &&
        CanServe(layout())) {
      too_late.emplace_back(id, pipeline.hops[departure->hop]);
      continue;
    }
    if (pipeline.open) {
      const Exits exits = ExitsOf(pipeline, departure, pipelines_, requests_, transfers_, now);
      for (RequestId request : exits.leave) TakeOut(pipeline, request, IfStuck::kLeave, now);
      for (RequestId request : exits.move) TakeOut(pipeline, request, IfStuck::kStay, now);
      transfers_.GiveUpExpiredIn(id);
    }
    const bool unused = pipeline.requests.size() == 0 && !transfers_.HasKvIn(id) &&
                        pipeline.scheduler->steps_in_flight() == 0;
    if (unused || !pipeline.open) empty.push_back(id);
  }
  for (PipelineId id : empty) {
    if (pipelines_.at(id).requests.size() == 0) {
      ClosePipeline(id, now);
    } else {
      LosePipeline(id, Unavailable("another plan is in force"), {}, now);
    }
  }
  // What the other workers of such a pipeline hold is kept for its requests.
  for (const auto& [id, hop] : too_late) {
    counters_.drained_replayed += pipelines_.at(id).requests.size();
    LosePipeline(id, Unavailable("the deadline of its worker has come"), {}, now, &hop);
  }
}

// Takes a request out of a retiring pipeline: it moves, or waits for another pipeline, or stays
// until it can move.
void ControllerCore::TakeOut(Pipeline& pipeline, RequestId id, IfStuck if_stuck, Time now) {
  Request& request = requests_.at(id);
  const auto info = pipeline.scheduler->Inspect(id, now);
  if (info && info->state == sched::RequestState::kPulling) return;  // until it has its KV
  const bool has_kv =
      info && info->state == sched::RequestState::kRunning && info->computed_tokens > 0;
  const bool serves = CanServe(layout());
  if (has_kv && !serves) return;  // no pipeline could take it, so it continues here
  const WorkerNeed need{.bits = request.bits, .protocol = ProtocolFor(*request.spec.params)};
  if (serves && !CanServe(layout(), need)) return;  // nor one with such workers
  if (has_kv && pipeline.role != StageRole::kPrefill) {
    if (transfers_.full()) return;
    placements_.Update();
    const auto choice = placements_.Choose(request, now);
    if (choice && !choice->pipeline->open) return;
    if (choice && transfers_.Migrate(id, pipeline, *choice->pipeline, now).ok()) {
      placements_.Sent();
      return;
    }
    if (if_stuck == IfStuck::kStay) return;
  }
  // A request that cannot migrate fetches its KV later: it is in the middle of its prompt, or no
  // pipeline takes it now.
  const auto hold = has_kv ? std::optional(options_.hold_limit) : std::nullopt;
  auto detached = pipeline.scheduler->Detach(id, now, hold);
  if (!detached) return;  // the request is ending
  if (hold) transfers_.Leave(pipeline, id, *detached);
  pipelines_.Remove(pipeline, id);
  Requeue(id, std::move(detached->request), TimeCause::kMove, now);
}

}  // namespace millrace::cluster
