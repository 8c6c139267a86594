// Membership: the workers of a cluster. It decides who may join and under which name, and who
// counts as alive.
//
// Owned by the controller, which assigns ids and acts on what this returns. Pure; one thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/connection_id.h"
#include "core/worker_messages.h"
#include "cost/profile.h"

namespace millrace::cluster {

struct MembershipOptions {
  static constexpr size_t kWorkersMax = 1024;
  // A worker counts as alive while its last heartbeat is less than this many intervals old.
  static constexpr int64_t kAliveBeats = 3;

  WorkerIdentity identity;  // what workers must match; empty fields match anything
  Duration heartbeat_every = Duration::Seconds(0.25);
  Duration silent_limit = Duration::Seconds(3);  // a worker without a heartbeat for longer is lost
  // A worker is lost when a batch runs longer than `stuck_limit` and longer than `stuck_factor`
  // times its longest earlier batch, or the full step that its profile predicts.
  Duration stuck_limit = Duration::Seconds(3);
  double stuck_factor = 8;
  Duration first_batch_limit = Duration::Seconds(60);
};

class Membership {
 public:
  struct Worker {
    WorkerId id;
    ConnectionId connection;
    Join join;
    WorkerAddress address;  // includes `id`
    Time last_beat;
    Heartbeat beat;
    int64_t longest_batch_ms = 0;  // so far, or predicted by the profile for a full step
    bool draining = false;
    bool leaving = false;                          // it has announced that it leaves
    std::shared_ptr<const cost::Profile> profile;  // as it said; null: none
    std::string unusable;                          // why it gets no layers; empty: it gets layers

    bool Usable() const { return !draining && unusable.empty(); }
  };

  explicit Membership(MembershipOptions options) : options_(std::move(options)) {}

  // Why no worker like this one can join, now or later. kFailedPrecondition: it differs from the
  // cluster. kInvalidArgument: it has no name. kResourceExhausted: kWorkersMax.
  Status CheckJoin(const Join& join) const;
  // Of the model, the arithmetic and the KV type that workers compare when they join: clusters with
  // equal ones compute the same bits. "": no worker has joined, or the model is not known yet.
  std::string BitsFingerprint() const;
  // kUnavailable: another process has the name and is alive. Otherwise a worker that still has the
  // name must be removed before this one is added.
  Status CheckName(const Join& join, Time now) const;
  // REQUIRES: both checks passed; the id and the connection are new; nobody has the name.
  const Worker& Add(WorkerId id, ConnectionId connection, Join join, Time now);
  // REQUIRES: the worker is a member.
  Worker Remove(WorkerId id);

  // False: the heartbeat is stale or its sender is no member. It changes nothing.
  bool Beat(ConnectionId from, const Heartbeat& beat, Time now);
  bool Alive(WorkerId id, Time now) const;
  // The members that count as lost, with the reason: silent, or stuck in a batch.
  std::vector<std::pair<WorkerId, Status>> Lost(Time now) const;

  // Null: there is none.
  Worker* Find(ConnectionId connection);
  Worker* Find(std::string_view name);
  const Worker* Find(WorkerId id) const;
  // REQUIRES: the worker is a member.
  Worker& at(WorkerId id) { return workers_.at(id); }
  const Worker& at(WorkerId id) const { return workers_.at(id); }
  const std::map<WorkerId, Worker>& all() const { return workers_; }
  // How many may be given layers.
  int usable() const;

  // Crashes with the reason if the tables do not agree with each other.
  void CheckIntegrity() const;

 private:
  const MembershipOptions options_;
  std::map<WorkerId, Worker> workers_;
  std::map<ConnectionId, WorkerId> connections_;
};

}  // namespace millrace::cluster
