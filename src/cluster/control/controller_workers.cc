// Workers: joins, heartbeats and losses.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {
namespace {

// An empty expectation matches anything. A worker with an empty value has no model yet and will get
// this one.
Status Compare(std::string_view what, const std::string& expected, const std::string& got) {
  if (expected.empty() || got.empty() || expected == got) return OkStatus();
  return FailedPrecondition(
      fmt::format("{}: this cluster has {}, the worker has {}", what, expected, got));
}

}  // namespace

ControllerCore::Worker* ControllerCore::ByConnection(ConnectionId connection) {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? nullptr : &workers_.at(found->second);
}

ControllerCore::Worker* ControllerCore::ByName(std::string_view name) {
  for (auto& [id, worker] : workers_) {
    if (worker.join.name == name) return &worker;
  }
  return nullptr;
}

void ControllerCore::Send(WorkerId worker, ToWorker message) {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  actions_.push_back(SendToWorker{found->second.connection, std::move(message)});
}

int ControllerCore::UsableWorkers() const {
  return static_cast<int>(std::ranges::count_if(workers_, [](const auto& entry) {
    return !entry.second.draining && entry.second.unusable.empty();
  }));
}

void ControllerCore::On(ConnectionId from, const Join& message, Time now) {
  if (connections_.contains(from)) {  // a session has one Join
    ++counters_.joins_refused;
    return;
  }
  Admit(from, message, now);
}

Status ControllerCore::CheckJoin(const Join& join) const {
  const WorkerIdentity& mine = options_.identity;
  const WorkerIdentity& its = join.identity;
  if (mine.protocol_version != its.protocol_version) {
    return FailedPrecondition(fmt::format(
        "protocol version: this cluster has {}, the worker has {}; run the same millrace version "
        "on both",
        mine.protocol_version, its.protocol_version));
  }
  MR_RETURN_IF_ERROR(Compare("model fingerprint", mine.model_fingerprint, its.model_fingerprint));
  // The workers that have joined set the numeric class, because all must compute the same bits.
  const auto other = std::ranges::find_if(
      workers_, [&](const auto& entry) { return entry.second.join.name != join.name; });
  const WorkerIdentity& others = other == workers_.end() ? mine : other->second.join.identity;
  MR_RETURN_IF_ERROR(Compare("numeric class", others.numeric_class, its.numeric_class));
  MR_RETURN_IF_ERROR(Compare(
      "KV layout", mine.kv_layout.empty() ? others.kv_layout : mine.kv_layout, its.kv_layout));
  if (join.name.empty()) return InvalidArgument("the worker has no name");
  if (workers_.size() >= ControllerOptions::kWorkersMax) {
    return ResourceExhausted(
        fmt::format("{} workers have joined, which is the limit", workers_.size()));
  }
  return OkStatus();
}

void ControllerCore::Admit(ConnectionId connection, Join join, Time now) {
  const auto refuse = [&](const Status& why, bool retry) {
    ++counters_.joins_refused;
    MR_LOG(warn, "refused worker {}: {}", Printable(join.name), why.message());
    actions_.push_back(SendToWorker{connection, Refused{why, retry}});
    actions_.push_back(Disconnect{connection, why.message()});
  };
  if (const Status ok = CheckJoin(join); !ok.ok()) return refuse(ok, false);
  // Two processes with one name must not replace each other forever, so a worker whose heartbeats
  // arrive keeps its name. Otherwise the newer process gets it, because the older may be hung.
  if (const Worker* older = ByName(join.name)) {
    const bool same = older->address.incarnation == join.address.incarnation;
    if (!same && Heard(*older, now)) {
      return refuse(
          Unavailable(fmt::format("another process has joined as {} and sent a heartbeat {:.1f} "
                                  "s ago; give each worker a unique name",
                                  Printable(join.name), (now - older->last_beat).seconds())),
          true);
    }
    LoseWorker(older->id,
               Unavailable(fmt::format("another process joined as {}", Printable(join.name))), true,
               now);
  }
  ++counters_.joins;
  Worker worker;
  worker.id = WorkerId(NextId());
  worker.connection = connection;
  worker.address = join.address;
  worker.address.worker = worker.id;
  worker.last_beat = now;
  worker.join = std::move(join);
  MR_LOG(info, "worker {} joined from {} ({})", Printable(worker.join.name),
         Printable(worker.address.data), Printable(worker.join.device));
  const WorkerId id = worker.id;
  connections_.emplace(connection, id);
  workers_.emplace(id, std::move(worker));
  follows_ = true;
  Send(id, Welcome{id, options_.term, options_.heartbeat_every});
  FollowWorkers(now);
  AssignWorkers(now);
}

void ControllerCore::Beat(ConnectionId from, const Heartbeat& beat, Time now) {
  Worker* worker = ByConnection(from);
  if (worker == nullptr || beat.incarnation != worker->address.incarnation ||
      beat.sequence <= worker->beat.sequence) {
    ++counters_.stale_messages;
    return;
  }
  // A batch that has ended since ran at least as long as its last reported age.
  if (beat.steps_done > worker->beat.steps_done) {
    worker->longest_batch_ms = std::max(worker->longest_batch_ms, worker->beat.batch_age_ms);
  }
  worker->beat = beat;
  worker->last_beat = now;
}

bool ControllerCore::Heard(const Worker& worker, Time now) const {
  return (now - worker.last_beat).ns < ControllerOptions::kAliveBeats * options_.heartbeat_every.ns;
}

void ControllerCore::WatchHeartbeats(Time now) {
  std::vector<std::pair<WorkerId, Status>> lost;
  for (const auto& [id, worker] : workers_) {
    const Duration silent = now - worker.last_beat;
    if (silent > options_.silent_limit) {
      lost.emplace_back(id, Unavailable(fmt::format("silent for {:.1f} s", silent.seconds())));
      continue;
    }
    double limit_s = options_.first_batch_limit.seconds();
    if (worker.beat.steps_done > 0) {
      limit_s =
          std::max(options_.stuck_limit.seconds(),
                   options_.stuck_factor * static_cast<double>(worker.longest_batch_ms) / 1e3);
    }
    const double age_s = static_cast<double>(worker.beat.batch_age_ms) / 1e3;
    if (age_s > limit_s) {
      lost.emplace_back(id, Unavailable(fmt::format("its batch has run for {:.1f} s, the limit is "
                                                    "{:.1f} s",
                                                    age_s, limit_s)));
    }
  }
  for (const auto& [id, reason] : lost) LoseWorker(id, reason, true, now);
}

void ControllerCore::ConnectionLost(ConnectionId connection, const Status& reason, Time now) {
  if (const Worker* worker = ByConnection(connection)) LoseWorker(worker->id, reason, false, now);
}

// Removes a worker from its slots. The other ranks of its stage shared a collective with it and
// must load again to form a new one.
void ControllerCore::UnassignSlots(Layout& layout, WorkerId worker) {
  for (LayoutStage& stage : layout.stages) {
    if (std::ranges::find(stage.ranks, worker, &Slot::worker) == stage.ranks.end()) continue;
    const bool alone = stage.ranks.size() == 1;
    stage.meetings_failed = 0;
    for (Slot& slot : stage.ranks) {
      if (slot.worker == worker) {
        slot = {};
      } else if (!alone) {
        // The rank may be waiting for the lost one, and can load nothing else meanwhile. If it has
        // begun to read weights, it continues.
        const bool meets = slot.asked && !slot.loaded && slot.bytes_done == 0;
        if (meets && shards_.erase(slot.shard) > 0) {
          Send(*slot.worker, UnloadShard{std::exchange(slot.shard, ShardId())});
        }
        slot.asked = slot.loaded = false;
      }
    }
    // Several ranks may drain at the same time.
    stage.closing = stage.closing && std::ranges::any_of(stage.ranks, [&](const Slot& slot) {
                      return slot.worker && workers_.at(*slot.worker).draining;
                    });
    if (&layout != &layout_ || !router_) continue;
    router_->SetStageUp(static_cast<int>(&stage - layout.stages.data()), false, Time{});
  }
}

void ControllerCore::LoseWorker(WorkerId id, const Status& reason, bool disconnect, Time now) {
  const Worker worker = std::move(workers_.at(id));
  MR_LOG(warn, "lost worker {}: {}", Printable(worker.join.name), reason.message());
  ++counters_.workers_lost;
  follows_ = true;
  workers_.erase(id);
  connections_.erase(worker.connection);
  std::erase_if(shards_, [&](const auto& entry) { return entry.second == id; });
  if (disconnect) actions_.push_back(Disconnect{worker.connection, reason.message()});
  std::vector<PipelineId> gone;
  for (const auto& [pipeline_id, pipeline] : pipelines_) {
    if (pipeline.Uses(id)) gone.push_back(pipeline_id);
  }
  const std::string cause = fmt::format("worker {}: {}", worker.join.name, reason.message());
  for (PipelineId pipeline : gone)
    LosePipeline(pipeline, Unavailable(cause), PipelineEnd::kDeath, {}, now);
  CountSuspectedDeaths(id, Unavailable(cause), now);
  UnassignSlots(layout_, id);
  if (next_) UnassignSlots(*next_, id);
  RerouteWaiting(now);
  AssignWorkers(now);
  // The lost worker may have been the replacement that a draining one waited for.
  if (next_ && !next_->automatic &&
      !std::ranges::all_of(next_->stages, &LayoutStage::FullyAssigned)) {
    for (WorkerId draining : DrainingInService()) (void)CloseStagesOf(draining, now);
  }
  MaybeSwitch(now);
}

void ControllerCore::On(ConnectionId from, const Leaving& message, Time now) {
  Worker* worker = ByConnection(from);
  worker->leaving = true;
  MR_LOG(info, "worker {} is about to leave{}", Printable(worker->join.name),
         message.in ? fmt::format(" in {:.0f} s", message.in->seconds()) : "");
  const WorkerId id = worker->id;
  const Status drained = DrainWorker(worker->join.name, now);
  if (drained.ok()) return;
  // The worker leaves anyway, so let it go at once instead of waiting until its host kills it. Its
  // requests wait for a replacement.
  MR_LOG(warn, "cannot drain the worker: {}", drained.message());
  Send(id, Leave{drained.message()});
}

}  // namespace millrace::cluster
