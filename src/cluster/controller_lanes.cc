// Lanes: opened over a route's workers, given steps, closed for good.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "cluster/controller.h"
#include "sched/step_log.h"

namespace millrace::cluster {
namespace {

// After a lane was lost its way is tried again at once, then ever more slowly.
constexpr Duration kRetryFirst = Duration::Seconds(0.05);
constexpr Duration kRetryMost = Duration::Seconds(2);

// Requests of a way that shares its stages' memory with others may each leave most of a block
// empty; the router bounds what they use together.
int WithSlack(int64_t blocks, int64_t sequences_max) {
  return static_cast<int>(
      std::min<int64_t>(blocks + sequences_max + 1, std::numeric_limits<int>::max() / 2));
}

std::string WayKey(const std::vector<LaneHop>& hops) {
  std::string key;
  for (const LaneHop& hop : hops) {
    key += fmt::format("{}[{},{})", hop.shards.front().value(), hop.layers.begin, hop.layers.end);
  }
  return key;
}

}  // namespace

bool Controller::Lane::Uses(WorkerId worker) const {
  return std::ranges::any_of(workers, [&](const std::vector<WorkerId>& hop) {
    return std::ranges::find(hop, worker) != hop.end();
  });
}

Controller::Lane* Controller::Find(LaneId id) {
  const auto found = lanes_.find(id);
  return found == lanes_.end() ? nullptr : &found->second;
}

int Controller::BlocksFor(const Route& route) const {
  int64_t tokens = std::numeric_limits<int64_t>::max();
  for (const Hop& hop : route) {
    const LayoutStage& stage = layout_.stages[static_cast<size_t>(hop.stage)];
    tokens = std::min(tokens, stage.KvTokenLayers() / hop.layers.size());
  }
  // No more than all sequences at their longest can fill: a step's worth at every hop.
  const sched::SchedulerOptions& each = options_.scheduler;
  const int64_t sequences_max = int64_t{each.max_num_seqs} * std::ssize(route);
  const int64_t longest = (each.max_model_len + each.block_size - 1) / each.block_size;
  const int64_t most = each.num_blocks > 0 ? each.num_blocks : (longest + 1) * (sequences_max + 1);
  const int64_t blocks = std::min(tokens / each.block_size, most);
  if (router_) return WithSlack(blocks, sequences_max);
  return static_cast<int>(std::min<int64_t>(blocks, std::numeric_limits<int>::max() / 2));
}

// The open lane of a way, or one that is being opened; none while a stage of it is not up.
Controller::Lane* Controller::LaneFor(const Route& route, StageRole role, Time now) {
  for (auto& [id, lane] : lanes_) {
    const bool same = std::ranges::equal(lane.route, route, [](const Hop& a, const Hop& b) {
      return a.stage == b.stage && a.layers == b.layers;
    });
    if (same && lane.role == role && !lane.retiring) return &lane;
  }
  const bool up = std::ranges::all_of(
      route, [&](const Hop& hop) { return layout_.stages[static_cast<size_t>(hop.stage)].Up(); });
  return up ? OpenLane(route, role, now) : nullptr;
}

// Who follows a hop that is lost needs the rows that left the hop before it; and where a prompt
// goes over to others they are cut as these are. Ranks have the same rows: the first keeps them.
std::vector<int> Controller::KeepRowsAt(LayerRange hop, StageRole role) const {
  std::set<int> at = {hop.end};
  for (const Way& way : layout_.ways) {
    if (role != StageRole::kPrefill || way.role == StageRole::kPrefill) continue;
    for (const Hop& next : way.route) at.insert(next.layers.end);
  }
  std::erase_if(at, [&](int layer) {
    return layer <= hop.begin || layer > hop.end || layer == options_.num_layers;
  });
  return {at.begin(), at.end()};
}

Controller::Lane* Controller::OpenLane(const Route& route, StageRole role, Time now) {
  Lane lane;
  lane.route = route;
  lane.role = role;
  for (const Hop& hop : route) {
    const LayoutStage& stage = layout_.stages[static_cast<size_t>(hop.stage)];
    LaneHop& there = lane.hops.emplace_back();
    there.layers = hop.layers;
    std::vector<WorkerId>& ids = lane.workers.emplace_back();
    for (const Slot& slot : stage.ranks) {
      there.ranks.push_back(workers_.at(*slot.worker).address);
      there.shards.push_back(slot.shard);
      ids.push_back(*slot.worker);
    }
  }
  const auto retry = lane_retry_.find(WayKey(lane.hops));
  if (retry != lane_retry_.end() && now < retry->second.first) return nullptr;
  sched::SchedulerOptions options = options_.scheduler;
  options.num_blocks = lane.num_blocks = BlocksFor(route);
  options.stages = static_cast<int>(route.size());
  options.even_steps = true;
  if (router_) options.watermark = 0;
  auto scheduler = sched::Scheduler::Create(options);
  if (!scheduler.ok()) {
    MR_LOG(error, "a way cannot be opened: {}", scheduler.status().message());
    lane_retry_[WayKey(lane.hops)] = {now + kRetryMost, kRetryMost};
    return nullptr;
  }
  lane.scheduler = std::move(*scheduler);
  if (options_.step_log) {
    lane.scheduler =
        sched::NewRecordingScheduler(std::move(lane.scheduler), options, options_.step_log);
  }
  if (options.num_host_blocks > 0 && options.stages == 1) lane.prefill.emplace(options.costs);
  lane.id = LaneId(NextId());
  for (size_t hop = 0; hop < lane.hops.size(); ++hop) {
    for (size_t rank = 0; rank < lane.workers[hop].size(); ++rank) {
      Send(lane.workers[hop][rank],
           millrace::OpenLane{.lane = lane.id,
                              .hops = lane.hops,
                              .hop = static_cast<int>(hop),
                              .rank = static_cast<int>(rank),
                              .block_size = options.block_size,
                              .num_blocks = lane.num_blocks,
                              .num_host_blocks = options.num_host_blocks,
                              .max_batched_tokens = options.max_num_batched_tokens,
                              .eos_token_ids = options.eos_token_ids,
                              .keep_rows_at = rank == 0 ? KeepRowsAt(lane.hops[hop].layers, role)
                                                        : std::vector<int>{}});
      lane.to_open.insert(lane.workers[hop][rank]);
    }
  }
  ++counters_.lanes_opened;
  turns_.Open(lane.id, lane.workers);
  return &lanes_.emplace(lane.id, std::move(lane)).first->second;
}

// Before anybody asks: a prompt that is handed over finds its lane open and keeps its KV.
void Controller::OpenWays(Time now) {
  for (const Way& way : layout_.ways) LaneFor(way.route, way.role, now);
}

void Controller::On(ConnectionId from, const LaneOpened& message, Time now) {
  Lane* lane = Find(message.lane);
  if (lane == nullptr || lane->open) {
    ++counters_.stale_messages;
    return;
  }
  if (!message.status.ok()) {
    // What lost lanes left takes memory that the next one may need.
    while (!remains_.empty()) DropHeirs(remains_.begin()->first);
    return LoseLane(message.lane, message.status, LaneEnd::kInnocent, {}, now);
  }
  // Each worker's own answer, once: a step must not be there before its lane.
  if (lane->to_open.erase(ByConnection(from)->id) == 0) ++counters_.stale_messages;
  if (!lane->to_open.empty()) return;
  lane->open = true;
  try_waiting_ = true;
}

void Controller::On(ConnectionId, const StepDone& message, Time now) {
  Lane* lane = Find(message.lane);
  if (lane == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  if (!lane_retry_.empty()) lane_retry_.erase(WayKey(lane->hops));
  if (lane->prefill) {
    if (const auto costs = lane->prefill->Done(message.result.id, now)) {
      lane->scheduler->SetCosts(*costs);
    }
  }
  const size_t first = outputs_.size();
  lane->scheduler->Commit(message.result, now, outputs_);
  dirty_.insert(lane->id);
  if (lane->scheduler->steps_in_flight() == 0) turns_.Idle(lane->id, dirty_);
  FilterNews(*lane, first, now);
}

void Controller::On(ConnectionId from, const LaneBroken& message, Time now) {
  if (Find(message.lane) == nullptr) {
    ++counters_.stale_messages;
    return;
  }
  MR_LOG(warn, "worker {} reports a broken lane: {}", Printable(ByConnection(from)->join.name),
         Printable(message.reason.message()));
  const Worker* worker = ByConnection(from);
  const bool cut_off = message.reason.code() == StatusCode::kUnavailable ||
                       message.reason.code() == StatusCode::kDeadlineExceeded;
  if (cut_off && !message.suspect) {
    // Its batch could not run with the other ranks: their collective has failed, for good.
    for (const LaneHop& hop : Find(message.lane)->hops) {
      const bool here =
          std::ranges::find(hop.ranks, worker->id, &WorkerAddress::worker) != hop.ranks.end();
      if (!here || hop.ranks.size() == 1) continue;
      const LaneHop failed = hop;
      return RemakeCollective(failed, message.reason, now);
    }
  }
  const LaneEnd end = message.suspect ? LaneEnd::kSuspicion : LaneEnd::kDeath;
  LoseLane(message.lane, message.reason, end, message.suspect, now);
}

// All lanes through the stage end; its ranks keep their weights and meet anew.
void Controller::RemakeCollective(const LaneHop& hop, const Status& reason, Time now) {
  std::vector<LaneId> through;
  for (const auto& [id, lane] : lanes_) {
    const bool uses = std::ranges::any_of(
        lane.hops, [&](const LaneHop& other) { return other.shards == hop.shards; });
    if (uses) through.push_back(id);
  }
  for (LaneId id : through) LoseLane(id, reason, LaneEnd::kInnocent, {}, now, &hop);
  MakeGroupAnew(hop.shards.front());
  Staff(now);
}

// Its requests go on elsewhere with the tokens they have.
void Controller::LoseLane(LaneId id, const Status& reason, LaneEnd end,
                          std::optional<WorkerId> suspect, Time now, const LaneHop* failed) {
  Lane& lane = lanes_.at(id);
  auto& retry = lane_retry_[WayKey(lane.hops)];
  retry.second = std::clamp(retry.second + retry.second, kRetryFirst, kRetryMost);
  retry.first = now + retry.second;
  ++counters_.lanes_lost;
  std::set<RequestId> ran;
  for (const sched::RequestInfo& info : lane.scheduler->InspectAll(now)) {
    if (info.state == sched::RequestState::kRunning) ran.insert(info.id);
  }
  // A step that failed by itself may do so again: what is there is not trusted.
  const bool step_failed =
      end == LaneEnd::kDeath &&
      std::ranges::all_of(lane.hops, [&](const LaneHop& hop) { return StillThere(hop); });
  if (!step_failed) KeepRemains(lane, failed, suspect, now);
  std::vector<sched::DetachedRequest> left = lane.scheduler->DetachAll(now);
  const std::set<RequestId> here = lane.requests;
  CloseLane(id);
  EndMovesOf(id, now);
  for (sched::DetachedRequest& detached : left) {
    const RequestId request = detached.request.id;
    if (!here.contains(request)) continue;  // a copy of one that runs elsewhere still
    Tracked& tracked = requests_.at(request);
    tracked.lane.reset();
    ++counters_.replays;
    tracked.suspect.reset();
    if (ran.contains(request) && end == LaneEnd::kDeath) CountDeath(tracked);
    if (ran.contains(request) && end == LaneEnd::kSuspicion) tracked.suspect = suspect;
    if (router_) router_->Release(request, tracked.told + tracked.prompt_tokens(), now);
    tracked.route.reset();
    Wait(request, tracked, std::move(detached.request), now);
    EndPoison(request, tracked, reason, now);
  }
  try_waiting_ = true;
}

void Controller::CountDeath(Tracked& tracked) {
  tracked.deaths = tracked.told > tracked.told_at_death ? 1 : tracked.deaths + 1;
  tracked.told_at_death = tracked.told;
}

// REQUIRES: it waits.
bool Controller::EndPoison(RequestId id, const Tracked& tracked, const Status& reason, Time now) {
  if (tracked.deaths < options_.deaths_max) return false;
  ++counters_.poisoned;
  EndWaiting(id, FinishReason::kError,
             Internal(fmt::format("{} workers were lost while they ran this request: {}",
                                  tracked.deaths, reason.message())),
             std::nullopt, now);
  return true;
}

// A worker whose peers said so first: the requests that ran with it may be the cause.
void Controller::BlameFor(WorkerId lost, const Status& reason, Time now) {
  std::vector<RequestId> blamed;
  for (auto& [id, tracked] : requests_) {
    if (tracked.suspect != lost) continue;
    tracked.suspect.reset();
    CountDeath(tracked);
    if (tracked.waiting) blamed.push_back(id);
  }
  std::ranges::sort(blamed);
  for (RequestId id : blamed) EndPoison(id, requests_.at(id), reason, now);
}

void Controller::CloseLane(LaneId id) {
  const auto found = lanes_.find(id);
  const auto remains = remains_.find(id);
  for (const LaneHop& hop : found->second.hops) {
    const bool kept = remains != remains_.end() &&
                      std::ranges::find(remains->second.hops, hop.shards, &LaneHop::shards) !=
                          remains->second.hops.end();
    if (kept) continue;
    for (const WorkerAddress& rank : hop.ranks) Send(rank.worker, millrace::CloseLane{id});
  }
  std::erase_if(pull_jobs_, [&](auto& entry) {
    if (entry.second.to != id) return false;
    for (TransferId transfer : entry.second.transfers) transfers_.erase(transfer);
    if (entry.second.left) CloseFetch(entry.second);
    return true;
  });
  turns_.Close(id, dirty_);
  dirty_.erase(id);
  closed_lanes_ += found->second.scheduler->Stats().CountersOnly();
  lanes_.erase(found);
  if (!remains_.contains(id)) DropHeirs(id);
}

void Controller::Pump(Lane& lane, Time now) {
  if (turns_.MayStep(lane.id)) {
    while (const StepPlan* plan = lane.scheduler->Schedule(now)) {
      if (lane.prefill) lane.prefill->Submitted(*plan, now);
      for (WorkerId worker : lane.workers.front()) Send(worker, LaneStep{lane.id, *plan});
    }
    turns_.Stepped(lane.id, lane.scheduler->steps_in_flight() > 0, ask_again_);
  }
  preemptions_.clear();
  lane.scheduler->DrainPreemptions(preemptions_);
  for (const sched::PreemptionRecord& p : preemptions_) MR_LOG(info, "{}", p.Describe());
  StartPulls(lane, now);
}

// Lanes of earlier plans: whoever runs there moves, whoever waits there leaves; then they close.
void Controller::RetireLanes(Time now) {
  // Who is on the way to one of them stays where it is, to go where the plan now says.
  std::vector<RequestId> astray;
  for (const auto& [request, move] : moves_) {
    const Lane* to = Find(move.to);
    if (move.phase != Move::Phase::kTail && to != nullptr && to->retiring) {
      astray.push_back(request);
    }
  }
  for (RequestId request : astray) AbandonMove(request, now);
  std::vector<LaneId> empty;
  for (auto& [id, lane] : lanes_) {
    if (!lane.retiring) continue;
    if (!lane.open) {
      empty.push_back(id);
      continue;
    }
    const std::set<RequestId> requests = lane.requests;
    for (RequestId request : requests) {
      if (moves_.contains(request)) continue;
      Tracked& tracked = requests_.at(request);
      const auto info = lane.scheduler->Inspect(request, now);
      const bool has_kv =
          info && info->state == sched::RequestState::kRunning && info->computed_tokens > 0;
      if (has_kv && tracked.n() == 1 && lane.role != StageRole::kPrefill) {
        if (moves_.size() >= ControllerOptions::kMovesMax) continue;
        tracked.route.reset();
        Lane* to = router_ ? nullptr : ChooseLane(request, tracked, now);
        if (to != nullptr && !to->open) continue;
        if (to != nullptr && StartMove(request, lane, *to, now).ok()) continue;
      }
      // Routed anew, or with several sequences, it may fetch its KV; else it is computed again.
      const bool may_fetch = has_kv && (router_ || tracked.n() > 1);
      const auto hold = may_fetch ? std::optional(options_.hold_limit) : std::nullopt;
      auto detached = lane.scheduler->Detach(request, now, hold);
      if (!detached) continue;  // its end is on the way
      if (hold) LeaveBehind(request, id, *detached, lane.scheduler->HeldBlocks(request));
      lane.requests.erase(request);
      tracked.lane.reset();
      Wait(request, tracked, std::move(detached->request), now);
    }
    const bool source = std::ranges::any_of(
        moves_, [from = id](const auto& entry) { return entry.second.from == from; });
    if (lane.requests.empty() && !source && !heirs_.contains(id) &&
        lane.scheduler->steps_in_flight() == 0) {
      empty.push_back(id);
    }
  }
  for (LaneId id : empty) {
    if (lanes_.at(id).requests.empty()) {
      CloseLane(id);
    } else {
      LoseLane(id, Unavailable("its plan is no longer in force"), LaneEnd::kInnocent, {}, now);
    }
  }
  DropUnusedShards();
  std::vector<WorkerId> idle;
  for (const auto& [id, worker] : workers_) {
    const bool used = HasSlot(layout_, id) || (next_ && HasSlot(*next_, id)) || HasRemains(id) ||
                      std::ranges::any_of(
                          lanes_, [&, w = id](const auto& entry) { return entry.second.Uses(w); });
    if (worker.draining && !used) idle.push_back(id);
  }
  for (WorkerId id : idle) {
    Send(id, Leave{"drained"});
  }
}

}  // namespace millrace::cluster
