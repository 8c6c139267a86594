// LeaderElection: elects at most one leader at a time among the candidates of a cluster. Writes of
// a previous leader fail.
//
// The leader holds one key under a lease. The revision at which that key was created is the term:
// it grows with every change of leader. A leader's writes carry its fence, so that the store
// refuses them once the key is gone. leadership() is empty no later than the lease ends: it checks
// the clock and does not depend on a thread.
//
// A leader whose lease has ended, because it stood still or could not reach the store, takes the
// key again as soon as it can. If nobody has led since, it goes on with its term. A second key
// tells: every leader writes its term there before it leads.
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
  std::string key = "leader";  // and KEY-term
  std::string candidate;       // the value of the key that everyone can read, such as an address
  Duration lease_ttl = Duration::Seconds(5);
  // After the end of the lease. The store cannot be reached, and perhaps only from here: then
  // another candidate leads, without workers until this one lets them go.
  Duration regain_limit = Duration::Seconds(60);
};

class LeaderElection {
 public:
  // `leadership` is set when this candidate was elected, and again, with the same term and another
  // fence, when it took the key again after its lease had ended. It is nullopt when somebody else
  // leads or has led, or the lease could not be renewed for too long, or this candidate resigned;
  // `why` says which.
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

  // Somebody else is known to lead, although the store does not say so yet. Any thread.
  void GiveWay(const Status& why);

  // Set while this candidate is certainly the leader: its key exists and its lease has not ended.
  // Between the end of a lease and its renewal it may still be the leader.
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
  // Tries once to become leader; ok: it is the leader. `term`: that of a leader that takes the key
  // again. Runs on thread_, as all below.
  Status TryToLead(std::optional<Term> term);
  Status Claim(LeaseId lease, Duration ttl, Time asked, std::optional<Term> term);
  // Leads until somebody else does or it is given up, and returns which.
  Status Lead();
  // Keeps the lease until it is lost or given up, and returns why it ended.
  Status HoldLease(const Held& held);
  Status Renew(const Held& held);
  // The lease has ended: takes the key again. Returns when that succeeded, or never can.
  Status Regain(const Held& held);
  Status WriteTerm(const Leadership& leadership);
  // kFailedPrecondition: somebody else has led since this term was won.
  Status CheckTerm(Term term);
  void StepDown(const Held& held, const Status& why);
  void WaitToTryAgain(const Status& why);
  std::string TermKey() const { return options_.key + "-term"; }

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
  Status gives_way_ MR_GUARDED_BY(mutex_);       // why; ok: it does not
  bool key_gone_ MR_GUARDED_BY(mutex_) = false;  // the watch saw the key of `held_` disappear
  std::optional<Leader> leader_ MR_GUARDED_BY(mutex_);
  Revision leader_seen_at_ MR_GUARDED_BY(mutex_);

  std::unique_ptr<Watch> watch_;
  std::thread thread_;
};

}  // namespace millrace::cluster
