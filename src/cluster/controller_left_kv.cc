// KV that requests left behind: in a lane that was lost, of which some hops are still there, in one
// that is given up and whose requests are routed anew, or at the source of a move whose last pull
// has failed. A lost lane runs nothing more, but its workers keep it open until whoever left KV
// there has fetched it or gone. What cannot be fetched is computed again by the layers that lack
// it, and by them alone: who held the layers before them has kept the rows that left these
// (engine/row_keeping_stage.h), those behind them have nothing to do. The lane that goes on may cut
// the layers elsewhere than the lost one did.
//
// All of it is a help. Where it fails, or comes too late, tokens are computed again by every layer.
#include <algorithm>
#include <utility>

#include "cluster/controller.h"

namespace millrace::cluster {
// What of the lane's hops can still be read: null when there is no such lane.
const std::vector<LaneHop>* Controller::HopsOf(LaneId id) {
  if (const Lane* lane = Find(id)) return &lane->hops;
  const auto found = remains_.find(id);
  return found == remains_.end() ? nullptr : &found->second.hops;
}

bool Controller::StillThere(const LaneHop& hop) const {
  return std::ranges::all_of(hop.shards, [&](ShardId shard) { return shards_.contains(shard); });
}

bool Controller::HasRemains(WorkerId worker) const {
  return std::ranges::any_of(remains_, [&](const auto& entry) {
    return std::ranges::any_of(entry.second.hops, [&](const LaneHop& hop) {
      return std::ranges::find(hop.ranks, worker, &WorkerAddress::worker) != hop.ranks.end();
    });
  });
}

// Before the lane is closed: what its requests have computed, of those hops that outlive it.
void Controller::KeepRemains(Lane& lane, const LaneHop* failed, std::optional<WorkerId> suspect,
                             Time now) {
  // What earlier heirs left here may have been given away since: only this scheduler knows.
  if (const auto heirs = heirs_.find(lane.id); heirs != heirs_.end()) {
    const std::set<RequestId> all = heirs->second;
    for (RequestId id : all) {
      Tracked& tracked = requests_.at(id);
      if (!StillLeft(id, *tracked.left)) DropLeft(id, tracked);
    }
  }
  Remains remains{.until = now + options_.waiting_limit};
  for (const LaneHop& hop : lane.hops) {
    const bool gone = (failed != nullptr && hop.shards == failed->shards) ||
                      std::ranges::find(hop.ranks, suspect, [](const WorkerAddress& rank) {
                        return std::optional(rank.worker);
                      }) != hop.ranks.end();
    if (!gone && StillThere(hop)) remains.hops.push_back(hop);
  }
  if (remains.hops.empty()) return;
  for (RequestId id : lane.requests) {
    if (auto here = lane.scheduler->Peek(id)) LeaveBehind(id, lane.id, std::move(*here), {});
  }
  for (const auto& [id, move] : moves_) {
    if (move.from == lane.id && move.phase == Move::Phase::kTail) LeaveAtSource(id, move, lane);
  }
  if (heirs_.contains(lane.id)) remains_.emplace(lane.id, std::move(remains));
}

// A block or less is not worth the trouble.
void Controller::LeaveBehind(RequestId id, LaneId lane, sched::DetachedRequest here,
                             std::vector<BlockIndex> held) {
  Tracked& tracked = requests_.at(id);
  if (here.computed_tokens() < options_.scheduler.block_size) {
    Find(lane)->scheduler->ReleaseKv(id);
    return;
  }
  // What it had left in this same lane is held no more, or as what it leaves now.
  if (tracked.left && tracked.left->lane != lane) DropLeft(id, tracked);
  tracked.left = LeftKv{lane, std::move(here.kv), here.lacking, std::move(held)};
  heirs_[lane].insert(id);
}

// Of a move in its tail: what the source holds.
void Controller::LeaveAtSource(RequestId id, const Move& move, Lane& from) {
  std::vector<BlockIndex> held = from.scheduler->HeldBlocks(id);
  if (held.empty()) return;
  LeaveBehind(id, from.id, {.request = {}, .kv = {{move.held_tokens, held}}}, held);
}

// Nobody needs it any more: fetched, ended, or lost.
void Controller::DropLeft(RequestId id, Tracked& tracked) {
  if (!tracked.left) return;
  const LaneId lane = std::exchange(tracked.left, std::nullopt)->lane;
  if (Lane* alive = Find(lane)) alive->scheduler->ReleaseKv(id);
  const auto heirs = heirs_.find(lane);
  heirs->second.erase(id);
  if (!heirs->second.empty()) return;
  heirs_.erase(heirs);
  if (auto gone = remains_.extract(lane)) CloseRemains(lane, gone.mapped());
}

void Controller::DropHeirs(LaneId lane) {
  const auto heirs = heirs_.find(lane);
  if (heirs == heirs_.end()) return;
  const std::set<RequestId> all = heirs->second;
  for (RequestId id : all) DropLeft(id, requests_.at(id));
}

void Controller::CloseRemains(LaneId id, const Remains& remains) {
  for (const LaneHop& hop : remains.hops) {
    for (const WorkerAddress& rank : hop.ranks) Send(rank.worker, millrace::CloseLane{id});
  }
}

void Controller::ExpireRemains(Time now) {
  std::vector<LaneId> late;
  for (const auto& [id, remains] : remains_) {
    const bool there =
        std::ranges::any_of(remains.hops, [&](const LaneHop& hop) { return StillThere(hop); });
    if (!there || now > remains.until) late.push_back(id);
  }
  for (LaneId id : late) DropHeirs(id);
}

// Who there holds KV of these layers, or of some of them.
std::vector<LaneHop> Controller::HoldersOf(LayerRange layers, LaneId in) {
  std::vector<LaneHop> holders;
  const std::vector<LaneHop>* hops = HopsOf(in);
  if (hops == nullptr) return holders;
  for (const LaneHop& hop : *hops) {
    if (hop.layers.Overlap(layers).size() > 0 && StillThere(hop)) holders.push_back(hop);
  }
  return holders;
}

// A lane that goes on for others may have given its blocks away: those of a lost one are nobody's.
bool Controller::StillLeft(RequestId id, const LeftKv& left) {
  const Lane* lane = Find(left.lane);
  return lane == nullptr || (!left.held.empty() && lane->scheduler->HeldBlocks(id) == left.held);
}

// Whether the request would find KV it left for any layer of the lane.
bool Controller::CanFetch(RequestId id, const Tracked& tracked, const Lane& lane) {
  if (!tracked.left || !StillLeft(id, *tracked.left)) return false;
  return std::ranges::any_of(lane.hops, [&](const LaneHop& hop) {
    return !HoldersOf(hop.layers, tracked.left->lane).empty();
  });
}

// False: there is nothing any more.
bool Controller::StartFetch(Lane& lane, const sched::KvPull& pull, bool doubtful) {
  const auto found = requests_.find(pull.id);
  if (found == requests_.end() || found->second.lane != lane.id ||
      !CanFetch(pull.id, found->second, lane)) {
    return false;
  }
  const LeftKv& left = *found->second.left;
  const sched::SequenceKv& there = left.kv[static_cast<size_t>(pull.index)];
  if (pull.end_token > there.tokens) return false;
  const KvHandle handle = NewHandle(left.lane);
  const ExposeKv expose{handle, there.blocks, there.tokens, options_.hold_limit};
  for (const LaneHop& hop : *HopsOf(left.lane)) {
    if (!StillThere(hop)) continue;
    for (const WorkerAddress& rank : hop.ranks) Send(rank.worker, expose);
  }
  PullJob job{.to = lane.id, .pull = pull};
  job.left = handle;
  job.doubtful = doubtful;
  job.layers.has_kv.resize(static_cast<size_t>(options_.num_layers));
  const uint64_t job_id = NextId();
  for (const LaneHop& hop : *HopsOf(left.lane)) {
    for (int l = hop.layers.begin; StillThere(hop) && l < hop.layers.end; ++l) {
      job.layers.has_kv[static_cast<size_t>(l)] = !left.lacking || !left.lacking->Contains(l);
    }
  }
  for (size_t h = 0; h < lane.hops.size(); ++h) {
    for (const LaneHop& holder : HoldersOf(lane.hops[h].layers, left.lane)) {
      FetchFrom(holder, lane, h, pull, job_id, job);
    }
  }
  pull_jobs_.emplace(job_id, std::move(job));
  return true;
}

// The last pull of a move has failed, of one hop perhaps: what the others hold is fetched by
// itself. All of the move's tokens, because whatever layers must compute, they compute at each of
// these. False: there is nothing to be fetched.
bool Controller::FetchTail(Lane& to, const PullJob& job, Time now) {
  const RequestId id = job.pull.id;
  const Move move = moves_.at(id);
  if (job.complete || !move.first_token || !SourceStillHolds(id, move, now)) return false;
  Tracked& tracked = requests_.at(id);
  Lane* from = Find(move.from);
  if (from != nullptr) LeaveAtSource(id, move, *from);
  if (!tracked.left || tracked.left->lane != move.from) return false;
  if (from != nullptr) CloseSource(move, *from);
  moves_.erase(id);
  ++counters_.moves_failed;
  ++counters_.replays;
  for (int i = 0; i < move.arrivals_due; ++i) to.scheduler->KvArrived(id, true, now);
  sched::KvPull pull = job.pull;
  pull.first_token = *move.first_token;
  if (!StartFetch(to, pull, /*doubtful=*/true)) FetchFailed(to, id, now);
  try_waiting_ = true;
  RetireLanes(now);
  return true;
}

// What one hop of the lost lane holds of one of the lane's.
void Controller::FetchFrom(const LaneHop& holder, const Lane& lane, size_t hop,
                           const sched::KvPull& pull, uint64_t job_id, PullJob& job) {
  const LayerRange layers = holder.layers.Overlap(lane.hops[hop].layers);
  std::vector<KvSource> sources;
  const int size = static_cast<int>(holder.ranks.size());
  for (int rank = 0; rank < size; ++rank) {
    sources.push_back(
        {holder.ranks[static_cast<size_t>(rank)], *job.left, holder.layers, {rank, size}});
  }
  const int ranks = static_cast<int>(lane.workers[hop].size());
  // Rank 0 alone sends to the next hop; what enters a layer within the hop each rank must have.
  const bool leave = layers.end == lane.hops[hop].layers.end;
  job.rows_due[layers.end] = leave ? 1 : ranks;
  PulledRows rows = PulledRows::kNone;
  if (layers.end < options_.num_layers) {
    const bool computes_behind = !job.layers.has_kv[static_cast<size_t>(layers.end)];
    if (leave) rows = RowsFrom(Find(job.left->lane));
    if (computes_behind || job.doubtful) rows = PulledRows::kAny;
  }
  for (int rank = 0; rank < ranks; ++rank) {
    const TransferId transfer(NextId());
    const bool takes_rows = !leave || rank == 0;
    Send(lane.workers[hop][static_cast<size_t>(rank)],
         PullKv{.transfer = transfer,
                .lane = lane.id,
                .blocks = pull.blocks,
                .first_token = pull.first_token,
                .end_token = pull.end_token,
                .sources = sources,
                .layers = layers,
                .rows = takes_rows ? rows : PulledRows::kNone});
    transfers_.emplace(transfer, job_id);
    job.transfers.insert(transfer);
    job.fetches.emplace(transfer, Fetch{layers, takes_rows});
    ++job.due;
  }
}

void Controller::NoteFetched(PullJob& job, const PullDone& done) {
  const Fetch& fetch = job.fetches.at(done.transfer);
  if (!done.status.ok()) {
    for (int l = fetch.layers.begin; l < fetch.layers.end; ++l) {
      job.layers.has_kv[static_cast<size_t>(l)] = false;
    }
  } else if (done.rows && fetch.rows && --job.rows_due[fetch.layers.end] == 0) {
    job.layers.rows.insert(fetch.layers.end);
  }
}

void FetchedLayers::KeepCommon(const FetchedLayers& other) {
  for (size_t l = 0; l < has_kv.size(); ++l) has_kv[l] = has_kv[l] && other.has_kv[l];
  std::erase_if(rows, [&](int layer) { return !other.rows.contains(layer); });
}

LayerRange FetchedLayers::Lacking() const {
  LayerRange lacking;
  for (int l = 0; l < std::ssize(has_kv); ++l) {
    if (has_kv[static_cast<size_t>(l)]) continue;
    if (lacking.size() == 0) lacking.begin = l;
    lacking.end = l + 1;
  }
  while (lacking.begin > 0 && !rows.contains(lacking.begin)) --lacking.begin;
  return lacking;
}

// Nobody pulls by its handle any more.
void Controller::CloseFetch(const PullJob& job) {
  const std::vector<LaneHop>* hops = HopsOf(job.left->lane);
  if (hops == nullptr) return;
  for (const LaneHop& hop : *hops) {
    for (const WorkerAddress& rank : hop.ranks) Send(rank.worker, ReleaseKv{*job.left});
  }
}

// It is computed there from its tokens: what it left is of no use any more.
void Controller::FetchFailed(Lane& lane, RequestId id, Time now) {
  const auto found = requests_.find(id);
  if (found != requests_.end() && found->second.lane == lane.id) DropLeft(id, found->second);
  lane.scheduler->KvArrived(id, false, now);
  dirty_.insert(lane.id);
}

// One sequence's. All of the request's are to compute at the same layers: what the first ones are
// said to lack grows with those that follow.
void Controller::FetchEnded(const PullJob& job, Time now) {
  CloseFetch(job);
  Lane* to = Find(job.to);
  if (to == nullptr) return;
  dirty_.insert(to->id);
  const auto found = requests_.find(job.pull.id);
  const bool in_time = found != requests_.end() && found->second.lane == to->id &&
                       found->second.left && found->second.left->lane == job.left->lane &&
                       StillLeft(job.pull.id, *found->second.left);
  if (!in_time) return FetchFailed(*to, job.pull.id, now);
  LeftKv& left = *found->second.left;
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
