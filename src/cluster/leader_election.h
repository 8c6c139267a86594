// LeaderElection: at most one candidate of a cluster leads at a time, and what an earlier leader
// still tries to write fails.
//
// The leader holds one key under a lease. The revision at which that key was created is the term:
// it grows with every change of leader. A leader's writes carry its fence, so that the store
// refuses them once the key is gone. Its own belief ends no later than its lease: leadership() asks
// the clock, not a thread.
//
// Any thread may call; the callback comes from the election's own thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "cluster/store.h"
#include "core/worker_messages.h"

namespace millrace::cluster {

struct Leadership {
  Term term;
  Fence fence;  // for WriteOptions of everything that only the leader may write
};

struct Leader {
  std::string candidate;  // what it campaigns with
  Term term;
};

struct ElectionOptions {
  std::string key = "leader";
  std::string candidate;  // shown to everybody, such as an address
  Duration lease_ttl = Duration::Seconds(5);
};

class LeaderElection {
 public:
  // `leadership` when this candidate was elected; nullopt when it has stopped leading, with why.
  // Called in pairs; the second at the latest when the lease ends.
  using OnChange = std::function<void(std::optional<Leadership> leadership, const Status& why)>;

  // `store` and `clock` (a monotonic one) outlive it. Observes from the start.
  LeaderElection(Store& store, const Clock& clock, ElectionOptions options, OnChange on_change);
  // Resigns first.
  ~LeaderElection();

  // From now on tries to lead, again after each loss. At once.
  void Campaign();
  // Stops trying; a leader gives the key up, so that another need not wait for the lease. Returns
  // when that is done or the store cannot be reached; no callback comes after it, and leadership()
  // is empty from the first moment. From the callback it returns at once.
  void Resign();

  // While this candidate leads for certain: its key is there and its lease has not ended.
  std::optional<Leadership> leadership() const;
  // Whoever leads, as last heard; nullopt: nobody, or not known.
  std::optional<Leader> leader() const;
  // Why the last try to lead failed; ok: it did not, or there was none.
  Status last_try() const;

 private:
  struct Held {
    Leadership leadership;
    LeaseId lease;
    Duration ttl;
    Time ends;  // the lease, counted from before it was asked for
  };

  void Run();
  // One try to become leader: ok when it leads. Thread's.
  Status TryToLead();
  Status Claim(LeaseId lease, Duration ttl, Time asked);
  // Keeps the lease until it is lost or given up; why. Thread's.
  Status HoldLease(const Held& held);
  Status Renew(const Held& held);
  void StepDown(const Held& held, const Status& why);
  void WaitToTryAgain(const Status& why);

  void Observe(const WatchUpdate& update);
  // `entry`: the leader's key as of revision `at`, or that it is not there.
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
  bool key_gone_ MR_GUARDED_BY(mutex_) = false;  // of `held_`, as a watch has told
  std::optional<Leader> leader_ MR_GUARDED_BY(mutex_);
  Revision leader_seen_at_ MR_GUARDED_BY(mutex_);

  std::unique_ptr<Watch> watch_;
  std::thread thread_;
};

}  // namespace millrace::cluster
