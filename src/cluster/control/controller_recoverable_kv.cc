// Recoverable KV: KV that requests left in a lost pipeline with surviving hops, in a retiring
// pipeline, or at the source of a move whose last pull failed. A lost pipeline runs no more steps,
// but its surviving workers keep it open until its requests have fetched their KV or ended. Only
// the layers whose KV cannot be fetched compute it again: the hop before them has cached the
// activations that enter them (stage/activation_caching_stage.h), and the layers after them have
// their KV. The next pipeline may split the layers differently.
//
// This is an optimization. If it fails or comes too late, every layer computes the tokens again.
#include <algorithm>
#include <utility>

#include "cluster/control/controller_core.h"

namespace millrace::cluster {
// The hops of an open or lost pipeline that may still be readable. Null: no such pipeline.
const std::vector<PipelineHop>* ControllerCore::HopsOf(PipelineId id) {
  if (const Pipeline* pipeline = Find(id)) return &pipeline->hops;
  const auto found = surviving_stages_.find(id);
  return found == surviving_stages_.end() ? nullptr : &found->second.hops;
}

bool ControllerCore::StillThere(const PipelineHop& hop) const {
  return std::ranges::all_of(hop.shards,
                             [&](ShardId shard) { return deployment_.HasShard(shard); });
}

// Called before the pipeline is closed: records the KV that its requests have on surviving hops.
void ControllerCore::RetainSurvivingStages(Pipeline& pipeline, const PipelineHop* failed,
                                           std::optional<WorkerId> suspect, Time now) {
  // Blocks of earlier waiters may have been reused since. Only this scheduler knows, and it is
  // about to go.
  if (const auto waiters = waiters_.find(pipeline.id); waiters != waiters_.end()) {
    const std::set<RequestId> all = waiters->second;
    for (RequestId id : all) {
      Tracked& tracked = requests_.at(id);
      if (!StillLeft(id, *tracked.left)) DropLeft(id, tracked);
    }
  }
  SurvivingStages surviving_stages{.until = now + options_.waiting_limit};
  for (const PipelineHop& hop : pipeline.hops) {
    const bool gone = (failed != nullptr && hop.shards == failed->shards) ||
                      std::ranges::find(hop.ranks, suspect, [](const WorkerAddress& rank) {
                        return std::optional(rank.worker);
                      }) != hop.ranks.end();
    if (!gone && StillThere(hop)) surviving_stages.hops.push_back(hop);
  }
  if (surviving_stages.hops.empty()) return;
  for (RequestId id : pipeline.requests) {
    if (auto here = pipeline.scheduler->Peek(id))
      LeaveBehind(id, pipeline.id, std::move(*here), {});
  }
  for (const auto& [id, move] : moves_) {
    if (move.from == pipeline.id && move.phase == Move::Phase::kTail)
      LeaveAtSource(id, move, pipeline);
  }
  if (waiters_.contains(pipeline.id))
    surviving_stages_.emplace(pipeline.id, std::move(surviving_stages));
}

// Records what the request leaves in the pipeline. Less than one block is not worth fetching.
void ControllerCore::LeaveBehind(RequestId id, PipelineId pipeline, sched::DetachedRequest here,
                                 std::vector<BlockIndex> held) {
  Tracked& tracked = requests_.at(id);
  if (here.computed_tokens() < options_.scheduler.block_size) {
    Find(pipeline)->scheduler->ReleaseKv(id);
    return;
  }
  // KV that it left earlier in the same pipeline is either no longer held or part of `held`.
  if (tracked.left && tracked.left->pipeline != pipeline) DropLeft(id, tracked);
  tracked.left = RecoverableKv{pipeline, std::move(here.kv), here.lacking, std::move(held)};
  waiters_[pipeline].insert(id);
}

// Records what the source holds for a move in its tail phase.
void ControllerCore::LeaveAtSource(RequestId id, const Move& move, Pipeline& from) {
  std::vector<BlockIndex> held = from.scheduler->HeldBlocks(id);
  if (held.empty()) return;
  LeaveBehind(id, from.id, {.request = {}, .kv = {{move.held_tokens, held}}}, held);
}

// Releases the request's recoverable KV, because it was fetched, cannot be fetched, or the request
// has ended.
void ControllerCore::DropLeft(RequestId id, Tracked& tracked) {
  if (!tracked.left) return;
  const PipelineId pipeline = std::exchange(tracked.left, std::nullopt)->pipeline;
  if (Pipeline* alive = Find(pipeline)) alive->scheduler->ReleaseKv(id);
  const auto waiters = waiters_.find(pipeline);
  waiters->second.erase(id);
  if (!waiters->second.empty()) return;
  waiters_.erase(waiters);
  if (auto gone = surviving_stages_.extract(pipeline))
    CloseSurvivingStages(pipeline, gone.mapped());
}

void ControllerCore::DropWaiters(PipelineId pipeline) {
  const auto waiters = waiters_.find(pipeline);
  if (waiters == waiters_.end()) return;
  const std::set<RequestId> all = waiters->second;
  for (RequestId id : all) DropLeft(id, requests_.at(id));
}

void ControllerCore::CloseSurvivingStages(PipelineId id, const SurvivingStages& surviving_stages) {
  for (const PipelineHop& hop : surviving_stages.hops) {
    for (const WorkerAddress& rank : hop.ranks) Send(rank.worker, millrace::ClosePipeline{id});
  }
}

void ControllerCore::ExpireSurvivingStages(Time now) {
  std::vector<PipelineId> late;
  for (const auto& [id, surviving_stages] : surviving_stages_) {
    const bool there = std::ranges::any_of(surviving_stages.hops,
                                           [&](const PipelineHop& hop) { return StillThere(hop); });
    if (!there || now > surviving_stages.until) late.push_back(id);
  }
  for (PipelineId id : late) DropWaiters(id);
}

// The surviving hops of pipeline `in` that hold KV of some of these layers.
std::vector<PipelineHop> ControllerCore::HoldersOf(LayerRange layers, PipelineId in) {
  std::vector<PipelineHop> holders;
  const std::vector<PipelineHop>* hops = HopsOf(in);
  if (hops == nullptr) return holders;
  for (const PipelineHop& hop : *hops) {
    if (hop.layers.Overlap(layers).size() > 0 && StillThere(hop)) holders.push_back(hop);
  }
  return holders;
}

// Whether the recoverable KV is still intact. A pipeline that still runs may have reused its
// blocks; a lost one cannot.
bool ControllerCore::StillLeft(RequestId id, const RecoverableKv& left) {
  const Pipeline* pipeline = Find(left.pipeline);
  return pipeline == nullptr ||
         (!left.held.empty() && pipeline->scheduler->HeldBlocks(id) == left.held);
}

// Whether the request has recoverable KV for any layer of the pipeline.
bool ControllerCore::CanFetch(RequestId id, const Tracked& tracked, const Pipeline& pipeline) {
  if (!tracked.left || !StillLeft(id, *tracked.left)) return false;
  return std::ranges::any_of(pipeline.hops, [&](const PipelineHop& hop) {
    return !HoldersOf(hop.layers, tracked.left->pipeline).empty();
  });
}

// Starts to fetch the request's recoverable KV into `pipeline`. False: there is none.
bool ControllerCore::StartFetch(Pipeline& pipeline, const sched::KvPull& pull, bool doubtful) {
  const auto found = requests_.find(pull.id);
  if (found == requests_.end() || found->second.pipeline != pipeline.id ||
      !CanFetch(pull.id, found->second, pipeline)) {
    return false;
  }
  const RecoverableKv& left = *found->second.left;
  const sched::SequenceKv& there = left.kv[static_cast<size_t>(pull.index)];
  if (pull.end_token > there.tokens) return false;
  const KvHandle handle = NewHandle(left.pipeline);
  const ExportKv expose{handle, there.blocks, there.tokens, options_.hold_limit};
  for (const PipelineHop& hop : *HopsOf(left.pipeline)) {
    if (!StillThere(hop)) continue;
    for (const WorkerAddress& rank : hop.ranks) Send(rank.worker, expose);
  }
  PullJob job{.to = pipeline.id, .pull = pull};
  job.left = handle;
  job.exported = expose;
  job.doubtful = doubtful;
  job.layers.has_kv.resize(static_cast<size_t>(options_.num_layers));
  const uint64_t job_id = NextId();
  for (const PipelineHop& hop : *HopsOf(left.pipeline)) {
    for (int l = hop.layers.begin; StillThere(hop) && l < hop.layers.end; ++l) {
      job.layers.has_kv[static_cast<size_t>(l)] = !left.lacking || !left.lacking->Contains(l);
    }
  }
  for (size_t h = 0; h < pipeline.hops.size(); ++h) {
    for (const PipelineHop& holder : HoldersOf(pipeline.hops[h].layers, left.pipeline)) {
      FetchFrom(holder, pipeline, h, pull, job_id, job);
    }
  }
  pull_jobs_.emplace(job_id, std::move(job));
  return true;
}

// The last pull of a move has failed, perhaps at one hop only. Fetches what the other hops hold,
// for all tokens of the move, because a layer that must compute does so for all of them. False:
// there is nothing to fetch.
bool ControllerCore::FetchTail(Pipeline& to, const PullJob& job, Time now) {
  const RequestId id = job.pull.id;
  const Move move = moves_.at(id);
  if (job.complete || !move.first_token || !SourceStillHolds(id, move, now)) return false;
  Tracked& tracked = requests_.at(id);
  Pipeline* from = Find(move.from);
  if (from != nullptr) LeaveAtSource(id, move, *from);
  if (!tracked.left || tracked.left->pipeline != move.from) return false;
  if (from != nullptr) CloseSource(move, *from);
  moves_.erase(id);
  ++counters_.moves_failed;
  ++counters_.replays;
  sched::KvPull pull = job.pull;
  pull.first_token = *move.first_token;
  if (!StartFetch(to, pull, /*doubtful=*/true)) FetchFailed(to, id, now);
  try_waiting_ = true;
  retire_ = true;
  return true;
}

// Pulls the layers that `holder`, a hop of the lost pipeline, shares with hop `hop` of `pipeline`.
void ControllerCore::FetchFrom(const PipelineHop& holder, const Pipeline& pipeline, size_t hop,
                               const sched::KvPull& pull, uint64_t job_id, PullJob& job) {
  const LayerRange layers = holder.layers.Overlap(pipeline.hops[hop].layers);
  std::vector<KvSource> sources;
  const int size = static_cast<int>(holder.ranks.size());
  for (int rank = 0; rank < size; ++rank) {
    sources.push_back(
        {holder.ranks[static_cast<size_t>(rank)], *job.left, holder.layers, {rank, size}});
  }
  const int ranks = static_cast<int>(pipeline.workers[hop].size());
  // Activations that leave the hop are needed by rank 0 only, which sends to the next hop.
  // Activations that enter a layer within the hop are needed by every rank.
  const bool leave = layers.end == pipeline.hops[hop].layers.end;
  job.activations_due[layers.end] = leave ? 1 : ranks;
  PulledActivations activations = PulledActivations::kNone;
  if (layers.end < options_.num_layers) {
    const bool computes_behind = !job.layers.has_kv[static_cast<size_t>(layers.end)];
    if (leave) activations = ActivationsFrom(Find(job.left->pipeline));
    if (computes_behind || job.doubtful) activations = PulledActivations::kAny;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const TransferId transfer(NextId());
    const bool takes_activations = !leave || rank == 0;
    Send(pipeline.workers[hop][static_cast<size_t>(rank)],
         PullKv{.transfer = transfer,
                .pipeline = pipeline.id,
                .blocks = pull.blocks,
                .first_token = pull.first_token,
                .end_token = pull.end_token,
                .sources = sources,
                .layers = layers,
                .activations = takes_activations ? activations : PulledActivations::kNone});
    transfers_.emplace(transfer, job_id);
    job.transfers.insert(transfer);
    job.fetches.emplace(transfer, Fetch{layers, takes_activations});
    ++job.due;
  }
}

void ControllerCore::NoteFetched(PullJob& job, const PullDone& done) {
  const Fetch& fetch = job.fetches.at(done.transfer);
  if (!done.status.ok()) {
    for (int l = fetch.layers.begin; l < fetch.layers.end; ++l) {
      job.layers.has_kv[static_cast<size_t>(l)] = false;
    }
  } else if (done.activations && fetch.activations &&
             --job.activations_due[fetch.layers.end] == 0) {
    job.layers.activations.insert(fetch.layers.end);
  }
}

void FetchedLayers::KeepCommon(const FetchedLayers& other) {
  for (size_t l = 0; l < has_kv.size(); ++l) has_kv[l] = has_kv[l] && other.has_kv[l];
  std::erase_if(activations, [&](int layer) { return !other.activations.contains(layer); });
}

LayerRange FetchedLayers::Lacking() const {
  LayerRange lacking;
  for (int l = 0; l < std::ssize(has_kv); ++l) {
    if (has_kv[static_cast<size_t>(l)]) continue;
    if (lacking.size() == 0) lacking.begin = l;
    lacking.end = l + 1;
  }
  while (lacking.begin > 0 && !activations.contains(lacking.begin)) --lacking.begin;
  return lacking;
}

// Releases the export, because no more pulls use its handle.
void ControllerCore::CloseFetch(const PullJob& job) {
  const std::vector<PipelineHop>* hops = HopsOf(job.left->pipeline);
  if (hops == nullptr) return;
  for (const PipelineHop& hop : *hops) {
    for (const WorkerAddress& rank : hop.ranks) Send(rank.worker, ReleaseKv{*job.left});
  }
}

// The pipeline computes the request from its tokens, so its recoverable KV is dropped.
void ControllerCore::FetchFailed(Pipeline& pipeline, RequestId id, Time now) {
  const auto found = requests_.find(id);
  if (found != requests_.end() && found->second.pipeline == pipeline.id)
    DropLeft(id, found->second);
  pipeline.scheduler->KvArrived(id, false, now);
  dirty_.insert(pipeline.id);
}

// The fetch for one sequence has ended. All sequences of a request must compute at the same layers,
// so the lacking layers accumulate over its sequences.
void ControllerCore::FetchEnded(const PullJob& job, Time now) {
  CloseFetch(job);
  Pipeline* to = Find(job.to);
  if (to == nullptr) return;
  dirty_.insert(to->id);
  const auto found = requests_.find(job.pull.id);
  const bool in_time = found != requests_.end() && found->second.pipeline == to->id &&
                       found->second.left && found->second.left->pipeline == job.left->pipeline &&
                       StillLeft(job.pull.id, *found->second.left);
  if (!in_time) return FetchFailed(*to, job.pull.id, now);
  RecoverableKv& left = *found->second.left;
  if (left.fetched) {
    left.fetched->KeepCommon(job.layers);
  } else {
    left.fetched = job.layers;
  }
  const LayerRange lacking = left.fetched->Lacking();
  const bool none = lacking.size() == options_.num_layers;
  if (lacking.size() == 0 || none) {
    to->scheduler->KvArrived(job.pull.id, !none, now);
  } else {
    to->scheduler->KvArrivedWithout(job.pull.id, lacking, now);
  }
  const auto info = to->scheduler->Inspect(job.pull.id, now);
  if (info && info->state == sched::RequestState::kPulling) return;  // for other sequences
  DropLeft(job.pull.id, found->second);
  counters_.fetched += none ? 0 : 1;
  counters_.computed_in_part += none || lacking.size() == 0 ? 0 : 1;
}

}  // namespace millrace::cluster
