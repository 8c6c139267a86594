// Pipelines: their workers' answers, steps, and losses.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {

// Opens all pipelines in advance. A prompt that is handed over keeps its KV only if its decode
// pipeline is open.
void ControllerCore::OpenPipelines(Time now) {
  for (const PlannedPipeline& planned : layout().pipelines) {
    (void)pipelines_.FindOrOpen(layout(), planned.route, planned.role, now);
  }
}

void ControllerCore::On(ConnectionId from, const PipelineOpened& message, Time now) {
  Pipeline* pipeline = pipelines_.Find(message.pipeline);
  if (pipeline == nullptr || pipeline->open) {
    ++counters_.stale_messages;
    return;
  }
  if (!message.status.ok()) {
    // Surviving stages of lost pipelines may occupy memory that this pipeline needs.
    transfers_.GiveUpSurviving();
    return LosePipeline(message.pipeline, message.status, PipelineEnd::kNoFault, {}, now);
  }
  if (!pipelines_.Opened(*pipeline, members_.Find(from)->id)) ++counters_.stale_messages;
  if (pipeline->open) requests_.TryQueue();
  retire_ = retire_ || pipeline->open;  // requests may move there
}

void ControllerCore::On(ConnectionId, const StepDone& message, Time now) {
  Pipeline* pipeline = pipelines_.Find(message.pipeline);
  if (pipeline == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  const size_t first = outputs_.size();
  pipelines_.Commit(*pipeline, message.result, now, outputs_);
  HandleOutputs(*pipeline, first, now);
}

void ControllerCore::On(ConnectionId from, const PipelineBroken& message, Time now) {
  if (pipelines_.Find(message.pipeline) == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  MR_LOG(warn, "worker {} reports a broken pipeline: {}", Printable(members_.Find(from)->join.name),
         Printable(message.reason.message()));
  const Worker* worker = members_.Find(from);
  const bool cut_off = message.reason.code() == StatusCode::kUnavailable ||
                       message.reason.code() == StatusCode::kDeadlineExceeded;
  if (cut_off && !message.suspect) {
    // Its batch could not run with the other ranks: their collective has failed permanently.
    for (const PipelineHop& hop : pipelines_.Find(message.pipeline)->hops) {
      const bool here =
          std::ranges::find(hop.ranks, worker->id, &WorkerAddress::worker) != hop.ranks.end();
      if (!here || hop.ranks.size() == 1) continue;
      const PipelineHop failed = hop;
      return RemakeCollective(failed, message.reason, now);
    }
  }
  const PipelineEnd end = message.suspect ? PipelineEnd::kSuspicion : PipelineEnd::kDeath;
  LosePipeline(message.pipeline, message.reason, end, message.suspect, now);
}

void ControllerCore::On(ConnectionId, const PullDone& message, Time now) {
  if (!transfers_.Done(message, now)) ++counters_.stale_messages;
}

// Ends all pipelines through the stage. Its ranks keep their weights and form a new group.
void ControllerCore::RemakeCollective(const PipelineHop& hop, const Status& reason, Time now) {
  for (PipelineId id : pipelines_.Using(hop.shards)) {
    LosePipeline(id, reason, PipelineEnd::kNoFault, {}, now, &hop);
  }
  deployment_.ResetGroup(hop.shards.front());
}

// Closes a pipeline. Its requests continue in other pipelines from the tokens they have.
void ControllerCore::LosePipeline(PipelineId id, const Status& reason, PipelineEnd end,
                                  std::optional<WorkerId> suspect, Time now,
                                  const PipelineHop* failed) {
  Pipeline& pipeline = pipelines_.at(id);
  pipelines_.BackOff(pipeline, now);
  ++counters_.pipelines_lost;
  std::set<RequestId> ran;
  for (const sched::RequestInfo& info : pipeline.scheduler->InspectAll(now)) {
    if (info.state == sched::RequestState::kRunning) ran.insert(info.id);
  }
  // If a step failed while all workers are there, its KV may be what made it fail, so it is not
  // kept.
  const bool step_failed =
      end == PipelineEnd::kDeath && std::ranges::all_of(pipeline.hops, [&](const PipelineHop& hop) {
        return transfers_.StillThere(hop);
      });
  if (!step_failed) transfers_.Retain(pipeline, failed, suspect, now);
  std::vector<sched::DetachedRequest> left = pipeline.scheduler->DetachAll(now);
  const PipelineRequests here = pipeline.requests;
  const TimeCause because = pipeline.retiring ? TimeCause::kMove : TimeCause::kLoss;
  ClosePipeline(id, now);
  placements_.DropLost();
  for (sched::DetachedRequest& detached : left) {
    const RequestId request = detached.request.id;
    if (!here.contains(request)) continue;  // it is moving here and still runs elsewhere
    ++counters_.replays;
    transfers_.TargetLost(request);
    requests_.PipelineEnded(request, end, ran.contains(request), suspect);
    Requeue(request, std::move(detached.request), because, now);
    EndAfterDeaths(request, reason, now);
  }
  requests_.TryQueue();
}

// These pipelines can do nothing, because others hold the memory that they need. Ends one of those:
// recoverable KV first, which is an optimization, and then a pipeline of an earlier plan, whose
// requests continue elsewhere and can fetch their KV as far as there is room. If there is neither,
// requests have grown beyond what they reserved, and a younger one gives way to an older one. Only
// one ends, because its memory may be enough. The starved ones try again in the next round.
void ControllerCore::MakeRoom(const std::set<PipelineId>& starved, Time now) {
  requests_.TryQueue();
  std::optional<PipelineId> ends;
  for (PipelineId id : starved) {
    pipelines_.Touch(id);
    if (!ends) ends = memory_.GivesWayTo(id);
  }
  if (!ends) {
    std::ranges::any_of(starved, [&](PipelineId id) { return EvictFor(id, now); });
    return;
  }
  if (!pipelines_.contains(*ends)) return transfers_.GiveUpIn(*ends);
  LosePipeline(*ends, Unavailable("other pipelines need its memory"), PipelineEnd::kNoFault, {},
               now);
}

// Takes the youngest request that holds memory of the starved pipeline's workers out of its
// pipeline, if it is younger than some request of the starved one. It waits, and is computed again
// from its tokens. The oldest request of all is never taken out, so it ends
// (docs/decisions/0003-admission.md).
bool ControllerCore::EvictFor(PipelineId starved, Time now) {
  const auto age_of = [&](RequestId id) { return std::pair(requests_.at(id).arrived, id); };
  std::optional<std::pair<Time, RequestId>> oldest, youngest;
  for (RequestId id : pipelines_.at(starved).requests.Ids()) {
    if (!oldest || age_of(id) < *oldest) oldest = age_of(id);
  }
  for (const auto& [id, pipeline] : pipelines_.all()) {
    if (id == starved || pipeline.retiring || !memory_.ShareMemory(id, starved)) continue;
    for (RequestId request : pipeline.requests.Ids()) {
      const auto info = pipeline.scheduler->Inspect(request, now);
      const bool holds = info && info->blocks > 0 && info->state != sched::RequestState::kPulling;
      if (!holds || transfers_.Migrates(request)) continue;
      if (!youngest || age_of(request) > *youngest) youngest = age_of(request);
    }
  }
  if (!oldest || !youngest || *youngest < *oldest) return false;
  const RequestId victim = youngest->second;
  Pipeline& from = pipelines_.at(*requests_.at(victim).pipeline);
  auto detached = from.scheduler->Detach(victim, now, std::nullopt);
  if (!detached) return false;  // it is ending
  ++counters_.evictions;
  pipelines_.Remove(from, victim);
  pipelines_.Touch(from.id);
  Requeue(victim, std::move(detached->request), TimeCause::kEviction, now);
  return true;
}

// Its surviving stages stay open at their workers.
void ControllerCore::ClosePipeline(PipelineId id, Time now) {
  pipelines_.Close(id, transfers_.SurvivingHops(id));
  transfers_.Closed(id, now);
  deployment_.Check();
}

}  // namespace millrace::cluster
