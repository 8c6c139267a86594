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
  const Status age = Membership::CheckAge(join, requests_.ProtocolNeeded());
  if (!age.ok()) return refuse(age, true);
  if (const Worker* older = members_.Find(join.name)) {
    LoseWorker(older->id,
               Unavailable(fmt::format("another process joined as {}", Printable(join.name))), true,
               now);
  }
  ++counters_.joins;
  const WorkerId id(ids_.Next());
  const Worker& worker = members_.Add(id, connection, std::move(join), now);
  MR_LOG(info, "worker {} joined from {} ({})", Printable(worker.join.name),
         Printable(worker.address.data), Printable(worker.join.device));
  outbox_.Send(id,
               Welcome{id, options_.term, options_.heartbeat_every, options_.identity.protocol});
  if (const TokenTable* tokens = members_.TokensFor(worker)) outbox_.Send(id, *tokens);
  machines_.WorkerJoined(worker);
  deployment_.WorkerJoined();
}

void ControllerCore::Beat(ConnectionId from, const Heartbeat& beat, Time now) {
  if (!members_.Beat(from, beat, now)) ++counters_.stale_messages;
}

void ControllerCore::ConnectionLost(ConnectionId connection, const Status& reason, Time now) {
  if (const Worker* worker = members_.Find(connection)) LoseWorker(worker->id, reason, false, now);
}

void ControllerCore::LoseWorker(WorkerId id, const Status& reason, bool disconnect, Time now) {
  const Worker worker = members_.Remove(id);
  MR_LOG(warn, "lost worker {}: {}", Printable(worker.join.name), reason.message());
  ++counters_.workers_lost;
  deployment_.WorkerLost(id);
  if (disconnect) outbox_.Disconnect(worker.connection, reason.message());
  const std::string cause = fmt::format("worker {}: {}", worker.join.name, reason.message());
  for (PipelineId pipeline : pipelines_.Using(id)) {
    LosePipeline(pipeline, Unavailable(cause), PipelineEnd::kDeath, {}, now);
  }
  memory_.LoseWorker(id);
  machines_.WorkerLost(id);
  CountSuspectedDeaths(id, Unavailable(cause), now);
}

void ControllerCore::On(ConnectionId from, const ShardLoaded& message, Time now) {
  const WorkerId worker = members_.Find(from)->id;
  switch (deployment_.ShardLoaded(worker, message)) {
    case Deployment::LoadResult::kTaken: return CountWeights(message);
    case Deployment::LoadResult::kStale: ++counters_.stale_messages; return;
    case Deployment::LoadResult::kWorkerLost: return LoseWorker(worker, message.status, true, now);
  }
}

void ControllerCore::CountWeights(const ShardLoaded& message) {
  if (!message.status.ok()) return;
  const int64_t kept = std::clamp<int64_t>(message.kept_bytes, 0, message.weight_bytes);
  const int64_t peers = std::clamp<int64_t>(message.peer_bytes, 0, message.weight_bytes - kept);
  counters_.weights_kept += static_cast<uint64_t>(kept);
  counters_.weights_from_peers += static_cast<uint64_t>(peers);
  counters_.weights_from_disk += static_cast<uint64_t>(message.weight_bytes - kept - peers);
}

void ControllerCore::On(ConnectionId, const ShardProgress& message, Time) {
  deployment_.ShardProgress(message);
}

void ControllerCore::On(ConnectionId from, const Leaving& message, Time now) {
  Worker& worker = *members_.Find(from);
  machines_.TakeNotice(worker, {message.origin, true}, message.in, now);
  const Status drained = deployment_.Drain(worker.id);
  if (drained.ok()) return;
  MR_LOG(warn, "cannot drain the worker: {}", drained.message());
  // It serves until its machine goes, or until others can take its place. Who stops an idle process
  // need not wait for that.
  const bool idle = StopsProcess(message.origin.source) && requests_.size() == 0;
  if (message.in && !idle) return;
  // Nobody knows how long it has, or nobody needs it: it goes at once instead of being killed by
  // its host. Its requests wait for a replacement.
  outbox_.Send(worker.id, worker.LeaveFor(drained.message()));
}

void ControllerCore::On(ConnectionId from, const Staying&, Time) {
  Worker& worker = *members_.Find(from);
  machines_.WithdrawNotice(worker);
  if (!worker.drain_ordered) deployment_.Stay(worker.id);
}

}  // namespace millrace::cluster
