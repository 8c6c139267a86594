#include "cluster/control/lifecycle/pipeline_closer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cluster/control/transfers/departure.h"
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

}  // namespace

PipelineCloser::PipelineCloser(Duration hold_limit, const Membership& members,
                               Deployment& deployment, Pipelines& pipelines, Requests& requests,
                               Transfers& transfers, KvMemory& memory, RequestLifecycle& lifecycle,
                               ControllerCounters& counters)
    : hold_limit_(hold_limit),
      members_(members),
      deployment_(deployment),
      pipelines_(pipelines),
      requests_(requests),
      transfers_(transfers),
      memory_(memory),
      lifecycle_(lifecycle),
      counters_(counters) {}

void PipelineCloser::Retire(Time now) {
  if (!std::exchange(due_, false)) return;
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
      Close(id, now);
    } else {
      Lose(id, Unavailable("another plan is in force"), {}, now);
    }
  }
  // What the other workers of such a pipeline hold is kept for its requests.
  for (const auto& [id, hop] : too_late) {
    counters_.drained_replayed += pipelines_.at(id).requests.size();
    Lose(id, Unavailable("the deadline of its worker has come"), {}, now, &hop);
  }
}

// Takes a request out of a retiring pipeline: it moves, or waits for another pipeline, or stays
// until it can move.
void PipelineCloser::TakeOut(Pipeline& pipeline, RequestId id, IfStuck if_stuck, Time now) {
  Requests::Request& request = requests_.at(id);
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
    const auto choice = lifecycle_.Choose(request, now);
    if (choice && !choice->pipeline->open) return;
    if (choice && transfers_.Migrate(id, pipeline, *choice->pipeline, now).ok()) {
      lifecycle_.Sent();
      return;
    }
    if (if_stuck == IfStuck::kStay) return;
  }
  // A request that cannot migrate fetches its KV later: it is in the middle of its prompt, or no
  // pipeline takes it now.
  const auto hold = has_kv ? std::optional(hold_limit_) : std::nullopt;
  auto detached = pipeline.scheduler->Detach(id, now, hold);
  if (!detached) return;  // the request is ending
  if (hold) transfers_.Leave(pipeline, id, *detached);
  pipelines_.Remove(pipeline, id);
  lifecycle_.Requeue(id, std::move(detached->request), TimeCause::kMove, now);
}

void PipelineCloser::RemakeCollective(const PipelineHop& hop, const Status& reason, Time now) {
  for (PipelineId id : pipelines_.Using(hop.shards)) {
    Lose(id, reason, {}, now, &hop);
  }
  deployment_.ResetGroup(hop.shards.front());
}

void PipelineCloser::Lose(PipelineId id, const Status& reason, const PipelineLoss& loss, Time now,
                          const PipelineHop* failed) {
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
  Close(id, now);
  lifecycle_.DropLostPlaces();
  for (sched::DetachedRequest& detached : left) {
    const RequestId request = detached.request.id;
    if (!here.contains(request)) continue;  // it is moving here and still runs elsewhere
    ++counters_.replays;
    transfers_.TargetLost(request);
    const auto ran = ran_from.find(request);
    requests_.blame().PipelineEnded(
        request, loss, ran == ran_from.end() ? std::nullopt : std::optional(ran->second));
    lifecycle_.Requeue(request, std::move(detached.request), because, now);
    lifecycle_.EndAfterDeaths(request, reason, now);
  }
  requests_.TryQueue();
}

// Ends one of those that hold the memory: recoverable KV first, which is an optimization, and then
// a pipeline of an earlier plan, whose requests continue elsewhere and can fetch their KV as far as
// there is room. If there is neither, requests have grown beyond what they reserved, and a younger
// one gives way to an older one. Only one ends, because its memory may be enough. The starved ones
// try again in the next round.
void PipelineCloser::MakeRoom(const std::set<PipelineId>& starved, Time now) {
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
  Lose(*ends, Unavailable("other pipelines need its memory"), {}, now);
}

// Takes a request out of its pipeline. It waits, and is computed again from its tokens.
bool PipelineCloser::EvictFor(PipelineId starved, Time now) {
  const auto victim = RequestToEvict(starved, {pipelines_, requests_, memory_, transfers_}, now);
  if (!victim) return false;
  Pipeline& from = pipelines_.at(*requests_.at(*victim).pipeline);
  auto detached = from.scheduler->Detach(*victim, now, std::nullopt);
  if (!detached) return false;  // it is ending
  ++counters_.evictions;
  pipelines_.Remove(from, *victim);
  pipelines_.Touch(from.id);
  lifecycle_.Requeue(*victim, std::move(detached->request), TimeCause::kEviction, now);
  return true;
}

// Its surviving stages stay open at their workers.
void PipelineCloser::Close(PipelineId id, Time now) {
  pipelines_.Close(id, transfers_.SurvivingHops(id));
  transfers_.Closed(id, now);
  deployment_.Check();
}

}  // namespace millrace::cluster
