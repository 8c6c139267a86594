// Workers: joins, heartbeats and losses.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cluster/control/controller_core.h"
#include "cluster/control/transfers/departure.h"

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
  const WorkerId id(ids_.Next());
  const Worker& worker = members_.Add(id, connection, std::move(join), now);
  MR_LOG(info, "worker {} joined from {} ({})", Printable(worker.join.name),
         Printable(worker.address.data), Printable(worker.join.device));
  outbox_.Send(id, Welcome{id, options_.term, options_.heartbeat_every, options_.identity.protocol,
                           options_.store});
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
  if (!worker.let_go.empty() && !disconnect) {
    MR_LOG(info, "worker {} left: {}", Printable(worker.join.name), worker.let_go);
    ++counters_.workers_left;
  } else {
    MR_LOG(warn, "lost worker {}: {}", Printable(worker.join.name), reason.message());
    ++counters_.workers_lost;
  }
  deployment_.WorkerLost(id);
  if (disconnect) outbox_.Disconnect(worker.connection, reason.message());
  const std::string cause = fmt::format("worker {}: {}", worker.join.name, reason.message());
  for (PipelineId pipeline : pipelines_.Using(id)) {
    closer_.Lose(pipeline, Unavailable(cause), {PipelineEnd::kDeath, {}, worker.join.name}, now);
  }
  memory_.LoseWorker(id);
  machines_.WorkerLost(id);
  // Peers may have reported the loss before. The requests that ran there may be its cause.
  for (RequestId suspected : requests_.blame().CountSuspectedOf(id, worker.join.name)) {
    if (requests_.at(suspected).waiting)
      lifecycle_.EndAfterDeaths(suspected, Unavailable(cause), now);
  }
}

void ControllerCore::EndForViolation(ConnectionId from, const std::string& what, Time now) {
  const WorkerId id = members_.Find(from)->id;
  ++counters_.protocol_violations;
  MR_LOG(warn, "worker {} violates the protocol: {}", Printable(members_.at(id).join.name), what);
  LoseWorker(id, InvalidArgument("it violated the protocol: " + what), true, now);
}

bool ControllerCore::Is(ConnectionId from, const std::optional<WorkerId>& worker) {
  return members_.Find(from)->id == worker;
}

// Its process lives and does not compute. It may hold up several pipelines.
void ControllerCore::LoseStillWorker(WorkerId id, const Status& reason, Time now) {
  if (members_.Find(id) == nullptr) return;
  ++counters_.workers_still;
  members_.NoteStill(id, reason);
  LoseWorker(id, reason, true, now);
}

void ControllerCore::On(ConnectionId from, const ShardLoaded& message, Time now) {
  const auto holder = deployment_.HolderOf(message.shard);
  if (holder && !Is(from, holder)) {
    return EndForViolation(from, "it reports a shard of another worker", now);
  }
  const WorkerId worker = members_.Find(from)->id;
  switch (deployment_.ShardLoaded(worker, message)) {
    case Deployment::LoadResult::kTaken: return counters_.CountWeights(message);
    case Deployment::LoadResult::kStale: ++counters_.stale_messages; return;
    case Deployment::LoadResult::kWorkerLost: return LoseWorker(worker, message.status, true, now);
  }
}

void ControllerCore::On(ConnectionId from, const ShardProgress& message, Time now) {
  const auto holder = deployment_.HolderOf(message.shard);
  if (holder && !Is(from, holder)) {
    return EndForViolation(from, "it reports a shard of another worker", now);
  }
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
