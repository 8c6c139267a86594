// LeaderElection: elects at most one leader at a time among the candidates of a cluster. Writes of
// a previous leader fail.
//
// The leader holds one key under a lease. The revision at which that key was created is the term:
// it grows with every change of leader. A leader's writes carry its fence, so that the store
// refuses them once the key is gone. A leader stops considering itself the leader no later than its
// lease ends: leadership() checks the clock and does not depend on a thread.
//
// Any thread may call it; the callback runs on the election's own thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "cluster/store/store.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

struct Leadership {
  Term term;
  Fence fence;  // for the WriteOptions of every write that only the leader may make
};

struct Leader {
  std::string candidate;  // ElectionOptions::candidate of the leader
  Term term;
};

struct ElectionOptions {
  std::string key = "leader";
  std::string candidate;  // the value of the key that everyone can read, such as an address
  Duration lease_ttl = Duration::Seconds(5);
};

class LeaderElection {
 public:
  // `leadership` is set when this candidate was elected. It is nullopt when the candidate has
  // stopped leading; `why` says the reason. Calls come in pairs, the second no later than the end
  // of the lease.
  using OnChange = std::function<void(std::optional<Leadership> leadership, const Status& why)>;

  // `store` and `clock` (a monotonic one) must outlive it. It observes the leader from the start.
  LeaderElection(Store& store, const Clock& clock, ElectionOptions options, OnChange on_change);
  // Resigns first.
  ~LeaderElection();

  // Starts trying to become leader, and tries again after each loss. Returns at once.
  void Campaign();
  // Stops trying. A leader gives up the key, so that the next one need not wait for the lease.
  // leadership() is empty from the start of this call. Returns when the key is gone or the store
  // cannot be reached; no callback runs after that. Called from the callback, it returns at once.
  void Resign();

  // Set while this candidate is certainly the leader: its key exists and its lease has not ended.
  std::optional<Leadership> leadership() const;
  // The leader as last observed; nullopt: there is none, or it is not known.
  std::optional<Leader> leader() const;
  // Why the last try to become leader failed; ok: it succeeded, or there was none.
  Status last_try() const;

 private:
  struct Held {
    Leadership leadership;
    LeaseId lease;
    Duration ttl;
    Time ends;  // the end of the lease, counted from before it was requested
  };

  void Run();
  // Tries once to become leader; ok: it is the leader. Runs on thread_.
  Status TryToLead();
  Status Claim(LeaseId lease, Duration ttl, Time asked);
  // Keeps the lease until it is lost or given up, and returns why it ended. Runs on thread_.
  Status HoldLease(const Held& held);
  Status Renew(const Held& held);
  void StepDown(const Held& held, const Status& why);
  void WaitToTryAgain(const Status& why);

  void Observe(const WatchUpdate& update);
  // `entry`: the leader's key as of revision `at`; null: the key does not exist.
  void Saw(const KeyValue* entry, Revision at) MR_REQUIRES(mutex_);

  Store& store_;
  const Clock& clock_;
  const ElectionOptions options_;
  const OnChange on_change_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  bool campaigning_ MR_GUARDED_BY(mutex_) = false;
  bool busy_ MR_GUARDED_BY(mutex_) = false;  // trying to lead, or leading
  Status last_try_ MR_GUARDED_BY(mutex_);
  std::optional<Held> held_ MR_GUARDED_BY(mutex_);
  bool key_gone_ MR_GUARDED_BY(mutex_) = false;  // the watch saw the key of `held_` disappear
  std::optional<Leader> leader_ MR_GUARDED_BY(mutex_);
  Revision leader_seen_at_ MR_GUARDED_BY(mutex_);

  std::unique_ptr<Watch> watch_;
  std::thread thread_;
};

}  // namespace millrace::cluster
