// KV transfers between pipelines: these layers' KV from those stages into that pipeline. A request
// is handed over from prefill to decode (DistServe section 4.3), migrates while it runs, or
// recovers what it has left in a lost or retiring pipeline. What it has left is held under a lease
// (recoverable_kv.h) and pulled once the destination has blocks for it (kv_pulls.h). If a transfer
// fails, the KV is computed again from the tokens.
#include <algorithm>
#include <iterator>
#include <utility>

#include "cluster/control/controller_core.h"

namespace millrace::cluster {
namespace {

// If more requests than this migrate at once, their KV is not copied in the background, because the
// KV of all of them is held until they have moved.
constexpr size_t kBackgroundMovesMax = 4;

}  // namespace

sched::Scheduler* ControllerCore::SchedulerOf(PipelineId id) {
  Pipeline* pipeline = Find(id);
  return pipeline == nullptr ? nullptr : pipeline->scheduler.get();
}

// The hops of an open or lost pipeline that may still be readable.
std::vector<PipelineHop> ControllerCore::ReadableHops(PipelineId id) {
  const Pipeline* runs = Find(id);
  const std::vector<PipelineHop>* all = runs ? &runs->hops : recoverable_.SurvivingHops(id);
  std::vector<PipelineHop> readable;
  if (all == nullptr) return readable;
  std::ranges::copy_if(*all, std::back_inserter(readable),
                       [&](const PipelineHop& hop) { return StillThere(hop); });
  return readable;
}

bool ControllerCore::StillThere(const PipelineHop& hop) const {
  return std::ranges::all_of(hop.shards,
                             [&](ShardId shard) { return deployment_.HasShard(shard); });
}

// Whether a worker of the pipeline drains. Its machine may be gone soon.
bool ControllerCore::IsLeaving(const Pipeline& pipeline) const {
  return std::ranges::any_of(
      members_.all(), [&](const auto& w) { return w.second.draining && pipeline.Uses(w.first); });
}

// A hop normally pulls the activations that leave it, so that if the next hop is lost later this
// one computes nothing again. From a retiring pipeline (null: a lost one) they are not pulled over
// the network, because a change of plan should move little and usually splits the layers elsewhere.
// The same applies to a pipeline with a draining worker.
PulledActivations ControllerCore::ActivationsFrom(const Pipeline* pipeline) const {
  const bool any = pipeline == nullptr || (!pipeline->retiring && !IsLeaving(*pipeline));
  return any ? PulledActivations::kAny : PulledActivations::kLocal;
}

// The prefill pipeline has finished the request's prompt; `first` is the output of its first token.
// Its KV stays there until the pipeline that decodes has fetched it.
void ControllerCore::HandOver(Pipeline& from, RequestId id, RequestOutput& first, Time now) {
  const Request& handed = requests_.at(id);
  from.requests.Remove(id);
  sched::NewRequest request = handed.spec;
  request.times = first.times;
  request.cached_prompt_tokens = first.cached_prompt_tokens;
  request.resumed.resize(1);
  request.resumed.front().output.assign(first.tokens.begin(), first.tokens.end());
  first.times.reset();

  std::vector<BlockIndex> held = from.scheduler->HeldBlocks(id);
  recoverable_.Leave(
      id,
      {.pipeline = from.id, .kv = {{handed.prompt_tokens(), held}}, .held = held, .moves = true});
  ++counters_.moves;
  Requeue(id, std::move(request), now);
  // It does not queue behind requests whose prompt is not computed.
  Pipeline* to = ChoosePipeline(handed, now);
  if (to != nullptr && to->open) (void)AddTo(*to, id, now);
}

// Starts a migration: `from` continues to run the request.
Status ControllerCore::StartMigration(RequestId id, Pipeline& from, Pipeline& to, Time now) {
  if (from.role == StageRole::kPrefill) {
    return FailedPrecondition(
        "the prompt is still being computed; the request is handed over with its first token");
  }
  MR_RETURN_IF_ERROR(migrations_.Start(id, from.id, *from.scheduler, to.id, *to.scheduler, now));
  dispatcher_.Sent();
  pipelines_.Touch(to.id);
  ++counters_.moves;
  return OkStatus();
}

void ControllerCore::StartPulls(Pipeline& to, Time now) {
  for (const sched::KvPull& pull : std::exchange(to.pulls, {})) {
    const Migrations::Migration* migration = migrations_.Find(pull.id);
    if (migration != nullptr && migration->to == to.id) {
      if (StartRound(to, pull, now)) continue;
      to.scheduler->KvArrived(pull.id, false, now);
      AbandonMigration(pull.id, now);
    } else if (!StartFetch(to, pull, /*doubtful=*/false)) {
      FetchFailed(to, pull.id, now);
    }
  }
}

// False: the source no longer has that much KV.
bool ControllerCore::StartRound(Pipeline& to, const sched::KvPull& pull, Time now) {
  const Pipeline& from = pipelines_.at(migrations_.Find(pull.id)->from);
  std::vector<BlockIndex> blocks = migrations_.BeginRound(pull, *from.scheduler, now);
  if (blocks.empty()) return false;
  const bool urgent = IsLeaving(from) || migrations_.all().size() > kBackgroundMovesMax;
  return kv_pulls_.Start({from.id, from.hops, {}, std::move(blocks), pull.end_token}, to.id,
                         to.hops, pull,
                         {.background = !urgent, .activations = ActivationsFrom(&from)});
}

// Starts to fetch what the request has left into `to`. False: there is nothing to fetch.
bool ControllerCore::StartFetch(Pipeline& to, const sched::KvPull& pull, bool doubtful) {
  const RecoverableKv* left = recoverable_.Find(pull.id);
  if (left == nullptr || requests_.at(pull.id).pipeline != to.id) return false;
  if (!StillIntact(pull.id, *left)) return false;
  const sched::SequenceKv& there = left->kv[static_cast<size_t>(pull.index)];
  if (pull.end_token > there.tokens) return false;
  return kv_pulls_.Start(
      {left->pipeline, ReadableHops(left->pipeline), left->lacking, there.blocks, there.tokens},
      to.id, to.hops, pull,
      {.activations = ActivationsFrom(Find(left->pipeline)), .doubtful = doubtful});
}

void ControllerCore::On(ConnectionId, const PullDone& message, Time now) {
  if (!kv_pulls_.Has(message.transfer)) {
    ++counters_.stale_messages;
    return;
  }
  counters_.moved_bytes += static_cast<uint64_t>(std::max<int64_t>(0, message.bytes));
  counters_.pulls_failed += message.status.ok() ? 0 : 1;
  const std::optional<KvPulls::Ended> ended = kv_pulls_.Done(message);
  if (!ended) return;
  Pipeline& to = pipelines_.at(ended->to);
  pipelines_.Touch(to.id);
  const Migrations::Migration* migration = migrations_.Find(ended->pull.id);
  if (migration != nullptr && migration->to == to.id) {
    RoundEnded(to, *ended, now);
  } else {
    FetchEnded(to, *ended, now);
  }
  requests_.TryQueue();  // the request may wait for the end of its last pull
}

// A round has arrived. Another one follows, or the request pauses.
void ControllerCore::RoundEnded(Pipeline& to, const KvPulls::Ended& ended, Time now) {
  const RequestId id = ended.pull.id;
  Pipeline& from = pipelines_.at(ended.from);
  to.scheduler->KvArrived(id, ended.layers.HasAllKv(), now);
  // Advance starts the next round, or pauses the request.
  const bool goes_on =
      migrations_.RoundEnded(id, ended.layers, *from.scheduler, *to.scheduler, now, to.pulls);
  if (!goes_on) AbandonMigration(id, now);
}

void ControllerCore::ContinuePauses(Time now) {
  bool any = false;
  for (RequestId id : migrations_.Pausing()) {
    const Migrations::Migration* migration = migrations_.Find(id);
    Pipeline& from = pipelines_.at(migration->from);
    Pipeline& to = pipelines_.at(migration->to);
    auto paused = migrations_.Pause(id, *from.scheduler, *to.scheduler, now, to.pulls);
    if (!paused) continue;
    pipelines_.Touch(from.id);
    pipelines_.Touch(to.id);
    any = true;
    FinishPause(from, to, id, std::move(*paused), now);
  }
  if (!any) return;
  requests_.TryQueue();
  retire_ = true;
}

// The request is paused at a step boundary. The destination owns it from now on.
void ControllerCore::FinishPause(Pipeline& from, Pipeline& to, RequestId id,
                                 Migrations::Paused paused, Time now) {
  if (paused.outcome != Migrations::Outcome::kMoved) ++counters_.moves_failed;
  if (!paused.request) return;  // it has ended, and the client has its end
  from.requests.Remove(id);
  if (paused.outcome == Migrations::Outcome::kNoRoom) {
    return Requeue(id, std::move(paused.request->request), now);
  }
  requests_.Place(id, to.id);
  to.requests.Add(id, 0);
  if (router_) requests_.at(id).route = to.route;
  if (paused.pulls_rest) {
    recoverable_.Leave(id, {.pipeline = from.id,
                            .kv = std::move(paused.request->kv),
                            .held = from.scheduler->HeldBlocks(id),
                            .moves = true,
                            .fetched = std::move(paused.migration.fetched)});
  }
}

// The destination drops the request. The source continues it, if it still has it.
void ControllerCore::AbandonMigration(RequestId id, Time now) {
  const Migrations::Migration* migration = migrations_.Find(id);
  const PipelineId from = migration->from, to = migration->to;
  migrations_.Abandon(id, SchedulerOf(from), SchedulerOf(to), now);
  kv_pulls_.Release(id, from);
  ++counters_.moves_failed;
  pipelines_.Touch(from);
  pipelines_.Touch(to);
}

// Ends the migrations from or to a lost pipeline.
void ControllerCore::EndMigrationsOf(PipelineId lost, Time now) {
  std::vector<RequestId> ended;
  for (const auto& [id, migration] : migrations_.all()) {
    if (migration.from == lost || migration.to == lost) ended.push_back(id);
  }
  for (RequestId id : ended) AbandonMigration(id, now);
}

// The request's KV does not arrive as it was planned to. `recomputes`: some of it is computed
// again.
void ControllerCore::MoveFailed(RequestId id, bool recomputes) {
  RecoverableKv* left = recoverable_.Find(id);
  if (left == nullptr || !std::exchange(left->moves, false)) return;
  ++counters_.moves_failed;
  counters_.replays += recomputes ? 1 : 0;
}

// The pipeline computes the request from its tokens, so what it has left is dropped.
void ControllerCore::FetchFailed(Pipeline& to, RequestId id, Time now) {
  const Request* request = requests_.Find(id);
  if (request != nullptr && request->pipeline == to.id) GiveUpKv(id);
  to.scheduler->KvArrived(id, false, now);
  pipelines_.Touch(to.id);
}

// The fetch for one sequence has ended. All sequences of a request must compute at the same layers,
// so the lacking layers accumulate over its sequences.
void ControllerCore::FetchEnded(Pipeline& to, const KvPulls::Ended& ended, Time now) {
  const RequestId id = ended.pull.id;
  RecoverableKv* left = recoverable_.Find(id);
  const bool in_time = left != nullptr && left->pipeline == ended.from &&
                       requests_.at(id).pipeline == to.id && StillIntact(id, *left);
  if (!in_time) return FetchFailed(to, id, now);
  if (ended.at_once && !ended.layers.HasAllKv()) {
    // Some hop of the source may be gone. What the others have is pulled again, with the
    // activations that a layer without KV computes from.
    MoveFailed(id, true);
    if (!StartFetch(to, ended.pull, /*doubtful=*/true)) FetchFailed(to, id, now);
    return;
  }
  if (left->fetched) {
    left->fetched->KeepCommon(ended.layers);
  } else {
    left->fetched = ended.layers;
  }
  const LayerRange lacking = left->fetched->Lacking();
  const bool none = lacking.size() == options_.num_layers;
  if (lacking.size() > 0) MoveFailed(id, true);
  if (lacking.size() == 0 || none) {
    to.scheduler->KvArrived(id, !none, now);
  } else {
    to.scheduler->KvArrivedWithout(id, lacking, now);
  }
  const auto info = to.scheduler->Inspect(id, now);
  if (info && info->state == sched::RequestState::kPulling) return;  // for other sequences
  if (!left->moves) {
    counters_.fetched += none ? 0 : 1;
    counters_.computed_in_part += none || lacking.size() == 0 ? 0 : 1;
  }
  DropKv(id);
  retire_ = true;
}

// Called before the pipeline is closed: records the KV that its requests have on surviving hops.
void ControllerCore::RetainSurvivingStages(Pipeline& pipeline, const PipelineHop* failed,
                                           std::optional<WorkerId> suspect, Time now) {
  GiveUpExpiredKvIn(pipeline.id);  // only this scheduler knows, and it is about to go
  std::vector<PipelineHop> surviving = ReadableHops(pipeline.id);
  std::erase_if(surviving, [&](const PipelineHop& hop) {
    return (failed != nullptr && hop.shards == failed->shards) ||
           (suspect &&
            std::ranges::find(hop.ranks, *suspect, &WorkerAddress::worker) != hop.ranks.end());
  });
  if (surviving.empty()) return;
  for (RequestId id : pipeline.requests.Ids()) {
    if (auto here = pipeline.scheduler->Peek(id)) LeaveBehind(pipeline, id, std::move(*here), {});
  }
  recoverable_.Survives(pipeline.id, std::move(surviving), now + options_.waiting_limit);
}

// Records what the request leaves in the pipeline. Less than one block is not worth fetching.
// `held`: the blocks that the pipeline's scheduler still holds, if the pipeline continues.
void ControllerCore::LeaveBehind(Pipeline& pipeline, RequestId id, sched::DetachedRequest here,
                                 std::vector<BlockIndex> held) {
  if (here.computed_tokens() < options_.scheduler.block_size) {
    pipeline.scheduler->ReleaseKv(id);
    return;
  }
  // KV that it left earlier in the same pipeline is either no longer held or part of `held`.
  const RecoverableKv* earlier = recoverable_.Find(id);
  if (earlier != nullptr && earlier->pipeline != pipeline.id) DropKv(id);
  recoverable_.Leave(id, {.pipeline = pipeline.id,
                          .kv = std::move(here.kv),
                          .lacking = here.lacking,
                          .held = std::move(held)});
}

// What the request has left is of no more use.
void ControllerCore::DropKv(RequestId id) {
  const RecoverableKv* left = recoverable_.Find(id);
  if (left == nullptr) return;
  if (Pipeline* alive = Find(left->pipeline)) {
    alive->scheduler->ReleaseKv(id);
    pipelines_.Touch(alive->id);
  }
  kv_pulls_.Release(id, left->pipeline);
  recoverable_.Drop(id);
}

// What the request has left cannot be fetched.
void ControllerCore::GiveUpKv(RequestId id) {
  MoveFailed(id, true);
  DropKv(id);
}

void ControllerCore::GiveUpKvIn(PipelineId pipeline) {
  for (RequestId id : recoverable_.In(pipeline)) GiveUpKv(id);
}

// Whether the KV is still intact. A pipeline that still runs may have reused its blocks; a lost one
// cannot.
bool ControllerCore::StillIntact(RequestId id, const RecoverableKv& left) {
  const sched::Scheduler* runs = SchedulerOf(left.pipeline);
  return runs == nullptr || (!left.held.empty() && runs->HeldBlocks(id) == left.held);
}

// How many tokens to fetch of what the request has left, by sequence; 0 for a sequence that has
// ended. Empty: nothing can be fetched. REQUIRES: the request waits.
std::vector<int> ControllerCore::ToFetch(RequestId id, const Pipeline& pipeline) {
  std::vector<int> tokens;
  RecoverableKv* left = recoverable_.Find(id);
  if (left == nullptr || !StillIntact(id, *left)) return tokens;
  const std::vector<PipelineHop> readable = ReadableHops(left->pipeline);
  const bool any = std::ranges::any_of(pipeline.hops, [&](const PipelineHop& hop) {
    return std::ranges::any_of(readable, [&](const PipelineHop& holder) {
      return holder.layers.Overlap(hop.layers).size() > 0;
    });
  });
  if (!any) return tokens;
  left->fetched.reset();
  const std::vector<sched::ResumedSequence>& resumed = requests_.at(id).waiting->resumed;
  std::optional<int> first;
  for (size_t i = 0; i < left->kv.size(); ++i) {
    const bool ended = !resumed.empty() && resumed[i].finished;
    tokens.push_back(ended ? 0 : left->kv[i].tokens);
    if (!ended && !first) first = tokens.back();
  }
  if (first.value_or(0) == 0) tokens.clear();
  return tokens;
}

// Blocks whose hold has expired may have been reused since.
void ControllerCore::GiveUpExpiredKvIn(PipelineId pipeline) {
  for (RequestId id : recoverable_.In(pipeline)) {
    if (!StillIntact(id, *recoverable_.Find(id))) GiveUpKv(id);
  }
}

void ControllerCore::ExpireSurvivingStages(Time now) {
  const auto there = [&](const PipelineHop& hop) { return StillThere(hop); };
  for (PipelineId id : recoverable_.Expired(now, there)) GiveUpKvIn(id);
}

bool ControllerCore::PullerAlive(PipelineId to, Time now) const {
  if (!pipelines_.contains(to)) return false;
  return std::ranges::all_of(pipelines_.at(to).workers, [&](const std::vector<WorkerId>& hop) {
    return std::ranges::all_of(hop, [&](WorkerId id) { return members_.Alive(id, now); });
  });
}

// The source keeps KV for `hold_limit`: its scheduler pins the blocks, and its workers allow reads.
// Both are renewed while heartbeats of the pulling workers arrive, however slow the pull is: the
// request may wait for blocks there, or the pull for the network. Without heartbeats the lease
// expires. An expired lease is not renewed, because its blocks may belong to another request.
void ControllerCore::RenewLeases(Time now) {
  const auto alive = [&](PipelineId to) { return PullerAlive(to, now); };
  for (RequestId id : migrations_.DueForRenewal(now, alive)) {
    const PipelineId from = migrations_.Find(id)->from;
    if (!migrations_.Renew(id, *SchedulerOf(from), now)) continue;
    kv_pulls_.Renew(id, from);
    ++counters_.leases_renewed;
  }
  for (RequestId id : recoverable_.DueForRenewal(now, options_.hold_limit)) {
    RecoverableKv& left = *recoverable_.Find(id);
    const std::optional<PipelineId> to = requests_.at(id).pipeline;
    if (!to || *to == left.pipeline || !alive(*to)) continue;
    left.renewal.Restart(now, options_.hold_limit);
    if (RenewKv(id, left, now)) ++counters_.leases_renewed;
  }
}

// Two pipelines must not wait for blocks that each keeps for the other. So blocks that no running
// request owns are kept longer only once the pull has begun, or where no pipeline waits in the
// opposite direction: for a hand-over from prefill, and in a retiring pipeline
// (docs/decisions/0006).
bool ControllerCore::RenewKv(RequestId id, const RecoverableKv& left, Time now) {
  const bool reads = kv_pulls_.Reads(id, left.pipeline);
  if (Pipeline* from = Find(left.pipeline)) {
    if (!reads && !from->retiring && from->role != StageRole::kPrefill) return false;
    if (!from->scheduler->ExtendHold(id, now, options_.hold_limit)) return false;
  } else {
    if (!reads) return false;
    recoverable_.Extend(left.pipeline, now + options_.hold_limit);
  }
  kv_pulls_.Renew(id, left.pipeline);
  return true;
}

}  // namespace millrace::cluster
