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
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/control/parts/bit_class.h"
#include "core/connection_id.h"
#include "core/worker_messages.h"
#include "cost/profile.h"

namespace millrace::cluster {

struct MembershipOptions {
  static constexpr size_t kWorkersMax = 1024;
  // A worker counts as alive while its last heartbeat is less than this many intervals old.
  static constexpr int64_t kAliveBeats = 3;
  // Ticks further apart mean that this process stood still.
  static constexpr Duration kPausedFrom = Duration::Seconds(1);
  static constexpr size_t kStillMax = 16;  // workers that are remembered as standing still

  WorkerIdentity identity;  // what workers must match; empty fields match anything
  Duration heartbeat_every = Duration::Seconds(0.25);
  Duration silent_limit = Duration::Seconds(3);  // a worker without a heartbeat for longer is lost
  // A worker is lost when a batch runs longer than `stuck_limit` and longer than `stuck_factor`
  // times its longest earlier batch, or the full step that its profile predicts.
  Duration stuck_limit = Duration::Seconds(3);
  double stuck_factor = 8;
  Duration first_batch_limit = Duration::Seconds(60);
  // A worker is lost when its computing thread takes up nothing for longer, although there is
  // something to do. A host that was stopped for some seconds is not meant.
  Duration still_limit = Duration::Seconds(10);
  std::optional<TokenTable> token_table;  // unset: output cannot be constrained
};

class Membership {
 public:
  struct Worker {
    WorkerId id;
    ConnectionId connection;
    Join join;
    WorkerAddress address;  // includes `id`
    BitClass bits;
    Time last_beat;
    Heartbeat beat;
    Time moved;                    // when a heartbeat last told of more batches
    int64_t longest_batch_ms = 0;  // so far, or predicted by the profile for a full step
    bool draining = false;
    bool drain_ordered = false;                    // by an operator
    std::string let_go;                            // why it was told to leave; empty: it was not
    std::optional<MachineNotice> notice;           // as it said, by the controller's clock
    std::shared_ptr<const cost::Profile> profile;  // as it said; null: none
    std::string unusable;                          // why it gets no layers; empty: it gets layers

    bool Usable() const { return !draining && unusable.empty(); }
    bool leaving() const { return notice && notice->hard; }
    // The message that lets it go: its session ends as it should, and is no loss. If its notice was
    // all that it left for, it may come back.
    Leave LeaveFor(std::string reason) {
      let_go = reason;
      return {std::move(reason), leaving() && !drain_ordered};
    }
  };

  // Why a member counts as lost.
  struct Loss {
    WorkerId worker;
    Status reason;
    bool stands_still = false;  // its process lives and computes nothing
  };
  // A worker whose session was ended because it stood still, until a worker of its name joins.
  struct Still {
    std::string name, reason;
  };

  explicit Membership(MembershipOptions options) : options_(std::move(options)) {}

  // Why no worker like this one can join, now or later. kFailedPrecondition: it has another model
  // or protocol, or another KV layout than the workers of its numeric class. kInvalidArgument: it
  // has no name or the controller's. kResourceExhausted: kWorkersMax, BitClasses::kClassesMax.
  Status CheckJoin(const Join& join) const;
  // kUnavailable: another process has the name and is alive. Otherwise a worker that still has the
  // name must be removed before this one is added.
  Status CheckName(const Join& join, Time now) const;
  // kFailedPrecondition: the output is constrained, and there is no tokenizer for it.
  Status CanConstrain(const SamplingParams& params) const;
  // What the worker needs for constrained output; null: it has that, or is too old.
  const TokenTable* TokensFor(const Worker& worker) const;
  // REQUIRES: both checks passed; the id and the connection are new; nobody has the name.
  const Worker& Add(WorkerId id, ConnectionId connection, Join join, Time now);
  // REQUIRES: the worker is a member.
  Worker Remove(WorkerId id);

  // False: the heartbeat is stale or its sender is no member. It changes nothing.
  bool Beat(ConnectionId from, const Heartbeat& beat, Time now);
  bool Alive(WorkerId id, Time now) const;
  // The members that count as lost: silent, stuck in a batch, or with a thread that stands still.
  // Call it at every tick: time in which this process stood still is no silence of the workers.
  std::vector<Loss> Lost(Time now);
  // How long this process stood still before the latest Lost; 0: it ran.
  Duration stood_still() const { return stood_still_; }
  // The member stands still, and is about to be removed for it.
  void NoteStill(WorkerId id, const Status& reason);
  // The newest kStillMax, oldest first.
  const std::vector<Still>& still() const { return still_; }

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
  std::map<BitClass, int> usable_by_class() const;

  // Of the model, the arithmetic and the KV type: workers with equal fingerprints compute the same
  // bits, in any cluster. "": the model is not known.
  std::string FingerprintOf(BitClass bits) const;
  // The numeric class of the members of this class. "": it has no member.
  std::string NumericClassOf(BitClass bits) const;
  // The class with this fingerprint, whether it has members or not. nullopt: the table is full.
  std::optional<BitClass> ClassWith(std::string_view fingerprint) {
    return classes_.Of(fingerprint);
  }

  // Crashes with the reason if the tables do not agree with each other.
  void CheckIntegrity() const;

 private:
  std::string FingerprintOf(const Join& join) const;
  Duration BatchLimit(const Worker& worker) const;

  const MembershipOptions options_;
  BitClasses classes_;
  std::map<WorkerId, Worker> workers_;
  std::map<ConnectionId, WorkerId> connections_;
  std::optional<Time> ticked_;
  Duration stood_still_;  // before it
  std::vector<Still> still_;
};

}  // namespace millrace::cluster
