// Pipelines: their workers' answers, steps, and losses.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/log.h"
#include "cluster/control/controller_core.h"
#include "cluster/control/transfers/eviction.h"

namespace millrace::cluster {
namespace {

// Of the requests in its steps: how many of their tokens it had computed.
std::map<RequestId, int64_t> RanFrom(const Pipeline& pipeline, Time now) {
  std::map<RequestId, int64_t> from;
  for (const sched::RequestInfo& info : pipeline.scheduler->InspectAll(now)) {
    if (info.state == sched::RequestState::kRunning) from[info.id] = info.computed_tokens;
  }
  return from;
}

// The hop that the worker computes with other ranks; nullopt: there is none.
std::optional<PipelineHop> SharedHop(const Pipeline& pipeline, WorkerId worker) {
  const auto found = std::ranges::find_if(pipeline.hops, [&](const PipelineHop& hop) {
    return hop.ranks.size() > 1 &&
           std::ranges::find(hop.ranks, worker, &WorkerAddress::worker) != hop.ranks.end();
  });
  return found == pipeline.hops.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

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
  if (!pipeline->Uses(members_.Find(from)->id)) {
    return EndForViolation(from, "it opens a pipeline that it is not in", now);
  }
  if (!message.status.ok()) {
    // Surviving stages of lost pipelines may occupy memory that this pipeline needs.
    transfers_.GiveUpSurviving();
    return LosePipeline(message.pipeline, message.status, {}, now);
  }
  if (!pipelines_.Opened(*pipeline, members_.Find(from)->id, now)) ++counters_.stale_messages;
  if (pipeline->open) UseOpened();
}

// A pipeline has opened.
void ControllerCore::UseOpened() {
  requests_.TryQueue();
  retire_ = true;  // requests may move there
}

// A step is answered by rank 0 of the last hop.
void ControllerCore::On(ConnectionId from, const StepDone& message, Time now) {
  Pipeline* pipeline = pipelines_.Find(message.pipeline);
  if (pipeline == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  if (!Is(from, pipeline->workers.back().front())) {
    return EndForViolation(from, "it answers a step of another worker", now);
  }
  if (message.result.id == kTestStep) {
    if (pipelines_.Tested(*pipeline)) return UseOpened();
    ++counters_.stale_messages;
    return;
  }
  const size_t first = outputs_.size();
  const Status taken = pipelines_.Commit(*pipeline, message.result, now, outputs_);
  HandleOutputs(*pipeline, first, now);
  if (!taken.ok()) EndForViolation(from, taken.message(), now);
}

void ControllerCore::On(ConnectionId from, const PipelineBroken& message, Time now) {
  const Pipeline* pipeline = pipelines_.Find(message.pipeline);
  if (pipeline == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  const Worker& worker = *members_.Find(from);
  const bool knows =
      pipeline->Uses(worker.id) && (!message.suspect || pipeline->Uses(*message.suspect));
  if (!knows) return EndForViolation(from, "it breaks a pipeline of other workers", now);
  MR_LOG(warn, "worker {} reports a broken pipeline: {}", Printable(worker.join.name),
         Printable(message.reason.message()));
  const bool cut_off = message.reason.code() == StatusCode::kUnavailable ||
                       message.reason.code() == StatusCode::kDeadlineExceeded;
  // Its batch could not run with the other ranks: their collective has failed permanently.
  const auto shared = SharedHop(*pipeline, worker.id);
  if (cut_off && !message.suspect && shared) return RemakeCollective(*shared, message.reason, now);
  const PipelineEnd end = message.suspect ? PipelineEnd::kSuspicion : PipelineEnd::kDeath;
  LosePipeline(message.pipeline, message.reason, {end, message.suspect, worker.join.name}, now);
}

void ControllerCore::On(ConnectionId from, const PullDone& message, Time now) {
  const auto puller = transfers_.PullerOf(message.transfer);
  if (!puller) {
    ++counters_.stale_messages;
    return;
  }
  if (!Is(from, puller)) return EndForViolation(from, "it ends a pull of another worker", now);
  transfers_.Done(message, now);
}

// Ends all pipelines through the stage. Its ranks keep their weights and form a new group.
void ControllerCore::RemakeCollective(const PipelineHop& hop, const Status& reason, Time now) {
  for (PipelineId id : pipelines_.Using(hop.shards)) {
    LosePipeline(id, reason, {}, now, &hop);
  }
  deployment_.ResetGroup(hop.shards.front());
}

// Closes a pipeline. Its requests continue in other pipelines from the tokens they have.
void ControllerCore::LosePipeline(PipelineId id, const Status& reason, const PipelineLoss& loss,
                                  Time now, const PipelineHop* failed) {
  Pipeline& pipeline = pipelines_.at(id);
  pipelines_.BackOff(pipeline, reason, now);
  ++counters_.pipelines_lost;
  const std::map<RequestId, int64_t> ran_from = RanFrom(pipeline, now);
  // If a step failed while all workers are there, its KV may be what made it fail, so it is not
  // kept.
  const bool step_failed = loss.end == PipelineEnd::kDeath &&
                           std::ranges::all_of(pipeline.hops, [&](const PipelineHop& hop) {
                             return transfers_.StillThere(hop);
                           });
  if (!step_failed) transfers_.Retain(pipeline, failed, loss.suspect, now);
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
    const auto ran = ran_from.find(request);
    requests_.blame().PipelineEnded(
        request, loss, ran == ran_from.end() ? std::nullopt : std::optional(ran->second));
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
  LosePipeline(*ends, Unavailable("other pipelines need its memory"), {}, now);
}

// Takes a request out of its pipeline. It waits, and is computed again from its tokens.
bool ControllerCore::EvictFor(PipelineId starved, Time now) {
  const auto victim = RequestToEvict(starved, {pipelines_, requests_, memory_, transfers_}, now);
  if (!victim) return false;
  Pipeline& from = pipelines_.at(*requests_.at(*victim).pipeline);
  auto detached = from.scheduler->Detach(*victim, now, std::nullopt);
  if (!detached) return false;  // it is ending
  ++counters_.evictions;
  pipelines_.Remove(from, *victim);
  pipelines_.Touch(from.id);
  Requeue(*victim, std::move(detached->request), TimeCause::kEviction, now);
  return true;
}

// Its surviving stages stay open at their workers.
void ControllerCore::ClosePipeline(PipelineId id, Time now) {
  pipelines_.Close(id, transfers_.SurvivingHops(id));
  transfers_.Closed(id, now);
  deployment_.Check();
}

}  // namespace millrace::cluster
