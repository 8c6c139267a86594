// KV that requests left behind: in a pipeline that was lost, of which some hops are still there, in
// one that is given up and whose requests are routed anew, or at the source of a move whose last
// pull has failed. A lost pipeline runs nothing more, but its workers keep it open until whoever
// left KV there has fetched it or gone. What cannot be fetched is computed again by the layers that
// lack it, and by them alone: who held the layers before them has kept the activations that left
// these (engine/activation_caching_stage.h), those behind them have nothing to do. The pipeline
// that goes on may cut the layers elsewhere than the lost one did.
//
// All of it is a help. Where it fails, or comes too late, tokens are computed again by every layer.
#include <algorithm>
#include <utility>

#include "cluster/controller_core.h"

namespace millrace::cluster {
// What of the pipeline's hops can still be read: null when there is no such pipeline.
const std::vector<PipelineHop>* ControllerCore::HopsOf(PipelineId id) {
  if (const Pipeline* pipeline = Find(id)) return &pipeline->hops;
  const auto found = surviving_stages_.find(id);
  return found == surviving_stages_.end() ? nullptr : &found->second.hops;
}

bool ControllerCore::StillThere(const PipelineHop& hop) const {
  return std::ranges::all_of(hop.shards, [&](ShardId shard) { return shards_.contains(shard); });
}

bool ControllerCore::HasSurvivingStages(WorkerId worker) const {
  return std::ranges::any_of(surviving_stages_, [&](const auto& entry) {
    return std::ranges::any_of(entry.second.hops, [&](const PipelineHop& hop) {
      return std::ranges::find(hop.ranks, worker, &WorkerAddress::worker) != hop.ranks.end();
    });
  });
}

// Before the pipeline is closed: what its requests have computed, of those hops that outlive it.
void ControllerCore::RetainSurvivingStages(Pipeline& pipeline, const PipelineHop* failed,
                                           std::optional<WorkerId> suspect, Time now) {
  // What earlier waiters left here may have been given away since: only this scheduler knows.
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

// A block or less is not worth the trouble.
void ControllerCore::LeaveBehind(RequestId id, PipelineId pipeline, sched::DetachedRequest here,
                                 std::vector<BlockIndex> held) {
  Tracked& tracked = requests_.at(id);
  if (here.computed_tokens() < options_.scheduler.block_size) {
    Find(pipeline)->scheduler->ReleaseKv(id);
    return;
  }
  // What it had left in this same pipeline is held no more, or as what it leaves now.
  if (tracked.left && tracked.left->pipeline != pipeline) DropLeft(id, tracked);
  tracked.left = RecoverableKv{pipeline, std::move(here.kv), here.lacking, std::move(held)};
  waiters_[pipeline].insert(id);
}

// Of a move in its tail: what the source holds.
void ControllerCore::LeaveAtSource(RequestId id, const Move& move, Pipeline& from) {
  std::vector<BlockIndex> held = from.scheduler->HeldBlocks(id);
  if (held.empty()) return;
  LeaveBehind(id, from.id, {.request = {}, .kv = {{move.held_tokens, held}}}, held);
}

// Nobody needs it any more: fetched, ended, or lost.
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

// Who there holds KV of these layers, or of some of them.
std::vector<PipelineHop> ControllerCore::HoldersOf(LayerRange layers, PipelineId in) {
  std::vector<PipelineHop> holders;
  const std::vector<PipelineHop>* hops = HopsOf(in);
  if (hops == nullptr) return holders;
  for (const PipelineHop& hop : *hops) {
    if (hop.layers.Overlap(layers).size() > 0 && StillThere(hop)) holders.push_back(hop);
  }
  return holders;
}

// A pipeline that goes on for others may have given its blocks away: those of a lost one are
// nobody's.
bool ControllerCore::StillLeft(RequestId id, const RecoverableKv& left) {
  const Pipeline* pipeline = Find(left.pipeline);
  return pipeline == nullptr ||
         (!left.held.empty() && pipeline->scheduler->HeldBlocks(id) == left.held);
}

// Whether the request would find KV it left for any layer of the pipeline.
bool ControllerCore::CanFetch(RequestId id, const Tracked& tracked, const Pipeline& pipeline) {
  if (!tracked.left || !StillLeft(id, *tracked.left)) return false;
  return std::ranges::any_of(pipeline.hops, [&](const PipelineHop& hop) {
    return !HoldersOf(hop.layers, tracked.left->pipeline).empty();
  });
}

// False: there is nothing any more.
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

// The last pull of a move has failed, of one hop perhaps: what the others hold is fetched by
// itself. All of the move's tokens, because whatever layers must compute, they compute at each of
// these. False: there is nothing to be fetched.
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
  for (int i = 0; i < move.arrivals_due; ++i) to.scheduler->KvArrived(id, true, now);
  sched::KvPull pull = job.pull;
  pull.first_token = *move.first_token;
  if (!StartFetch(to, pull, /*doubtful=*/true)) FetchFailed(to, id, now);
  try_waiting_ = true;
  RetirePipelines(now);
  return true;
}

// What one hop of the lost pipeline holds of one of the pipeline's.
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
  // Rank 0 alone sends to the next hop; what enters a layer within the hop each rank must have.
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

// Nobody pulls by its handle any more.
void ControllerCore::CloseFetch(const PullJob& job) {
  const std::vector<PipelineHop>* hops = HopsOf(job.left->pipeline);
  if (hops == nullptr) return;
  for (const PipelineHop& hop : *hops) {
    for (const WorkerAddress& rank : hop.ranks) Send(rank.worker, ReleaseKv{*job.left});
  }
}

// It is computed there from its tokens: what it left is of no use any more.
void ControllerCore::FetchFailed(Pipeline& pipeline, RequestId id, Time now) {
  const auto found = requests_.find(id);
  if (found != requests_.end() && found->second.pipeline == pipeline.id)
    DropLeft(id, found->second);
  pipeline.scheduler->KvArrived(id, false, now);
  dirty_.insert(pipeline.id);
}

// One sequence's. All of the request's are to compute at the same layers: what the first ones are
// said to lack grows with those that follow.
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
  if (info && info->state == sched::RequestState::kPulling) return;  // others are on the way
  DropLeft(job.pull.id, found->second);
  counters_.fetched += none ? 0 : 1;
  counters_.computed_in_part += none || lacking.size() == 0 ? 0 : 1;
}

}  // namespace millrace::cluster
