// Workers: joins, heartbeats and losses.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cluster/control/controller_core.h"

namespace millrace::cluster {

void ControllerCore::On(ConnectionId from, const Join& message, Time now) {
  if (members_.Find(from) != nullptr) {  // a session has one Join
    ++counters_.joins_refused;
    return;
  }
  Admit(from, message, now);
}

void ControllerCore::Admit(ConnectionId connection, Join join, Time now) {
  const auto refuse = [&](const Status& why, bool retry) {
    ++counters_.joins_refused;
    MR_LOG(warn, "refused worker {}: {}", Printable(join.name), why.message());
    outbox_.Send(connection, Refused{why, retry});
    outbox_.Disconnect(connection, why.message());
  };
  if (const Status ok = members_.CheckJoin(join); !ok.ok()) return refuse(ok, false);
  if (const Status ok = members_.CheckName(join, now); !ok.ok()) return refuse(ok, true);
  if (const Worker* older = members_.Find(join.name)) {
    LoseWorker(older->id,
               Unavailable(fmt::format("another process joined as {}", Printable(join.name))), true,
               now);
  }
  ++counters_.joins;
  const WorkerId id(NextId());
  const Worker& worker = members_.Add(id, connection, std::move(join), now);
  MR_LOG(info, "worker {} joined from {} ({})", Printable(worker.join.name),
         Printable(worker.address.data), Printable(worker.join.device));
  follows_ = true;
  Send(id, Welcome{id, options_.term, options_.heartbeat_every});
  FollowWorkers(now);
  AssignWorkers(now);
}

void ControllerCore::Beat(ConnectionId from, const Heartbeat& beat, Time now) {
  if (!members_.Beat(from, beat, now)) ++counters_.stale_messages;
}

void ControllerCore::ConnectionLost(ConnectionId connection, const Status& reason, Time now) {
  if (const Worker* worker = members_.Find(connection)) LoseWorker(worker->id, reason, false, now);
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
                      return slot.worker && members_.at(*slot.worker).draining;
                    });
    if (&layout != &layout_ || !router_) continue;
    router_->SetStageUp(static_cast<int>(&stage - layout.stages.data()), false, Time{});
  }
}

void ControllerCore::LoseWorker(WorkerId id, const Status& reason, bool disconnect, Time now) {
  const Worker worker = members_.Remove(id);
  MR_LOG(warn, "lost worker {}: {}", Printable(worker.join.name), reason.message());
  ++counters_.workers_lost;
  follows_ = true;
  std::erase_if(shards_, [&](const auto& entry) { return entry.second == id; });
  if (disconnect) outbox_.Disconnect(worker.connection, reason.message());
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
  Worker* worker = members_.Find(from);
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
