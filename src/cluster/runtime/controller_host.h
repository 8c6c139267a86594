// ControllerHost: runs a ControllerCore in a server. It adds a clock, a lock and the callers'
// output sinks. To a front end it is a Generator.
//
// Messages are applied under the lock on the threads that bring them, and the resulting messages
// are sent at once, so that no step waits for a thread to wake. The host's own thread delivers
// outputs to the sinks and drives the clock.
//
// Owned by ControllerProcess or LocalCluster. Any thread may call it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/rng.h"
#include "cluster/control/controller_core.h"
#include "cluster/generator.h"

namespace millrace::cluster {

// How the controller reaches workers. Called from any thread with the controller's lock held, so
// the functions must not block and must not call the controller.
struct ControllerLinks {
  std::function<void(ConnectionId to, const ToWorker& message)> send;
  std::function<void(ConnectionId connection, const std::string& reason)> disconnect;
};

// Records requests and outputs before a client sees them. The functions may wait for a disk and are
// called without the controller's lock. Submitting threads call `accepted`, one at a time in the
// order of the ids. The controller's thread calls `delivered`. If a call fails, its requests fail
// with its status.
struct ControllerJournal {
  std::function<Status(const sched::NewRequest& request, const GenerationRequest& asked)> accepted;
  std::function<Status(const std::vector<RequestOutput>& outputs)> delivered;
  // Whether records can be written now, with a text for clients. The controller's thread calls it
  // now and then.
  std::function<Status()> check;
};

// Hears of every request and of all that clients get. Called with the controller's lock held, so
// the functions must not block and must not call the controller.
struct RequestWatcher {
  std::function<void(RequestId request, int prompt_tokens)> arrived;
  std::function<void(const RequestOutput& output)> heard;
};

struct ControllerHostOptions {
  ControllerOptions controller;
  uint64_t seed = 0;            // for requests without a seed
  uint64_t first_request = 1;   // the first id; above those of the previous run
  ControllerJournal journal;    // empty functions: no journal
  bool remote_workers = false;  // they are other processes
  // Whether this controller certainly leads. While it does not, no worker joins: the term that it
  // would name may be that of a leader that was replaced. Empty: it always does.
  std::function<bool()> leads;
};

class ControllerHost : public Generator {
 public:
  // `clock` outlives the controller.
  static Result<std::unique_ptr<ControllerHost>> Start(ControllerHostOptions options,
                                                       ControllerLinks links, const Clock& clock);
  ~ControllerHost() override;  // calls Close
  // Aborts all requests and joins the thread. Later messages of workers are ignored.
  void Close();

  // Input from workers; any thread.
  void Receive(ConnectionId from, ToController message);
  void Beat(ConnectionId from, const Heartbeat& beat);
  void ConnectionLost(ConnectionId connection, const Status& reason);

  Result<RequestId> Submit(GenerationRequest request, OutputSink sink) override;
  uint64_t DrawnSeed(RequestId id) const override { return HashCounter(options_.seed, id.value()); }
  void Abort(RequestId request, std::optional<int> index = {}) override;
  GeneratorStats Stats() const override;
  std::optional<sched::RequestInfo> Inspect(RequestId request) const override;
  std::optional<TimeAccount> Account(RequestId request) const override;
  std::vector<sched::RequestInfo> InspectAll() const override;
  std::optional<std::string> NotReady() const override;
  std::optional<Duration> PredictedTtft(int prompt_tokens) const override;
  bool Drain(Duration limit) override;

  // Submits a recovered request, from the journal. `computed_by`: as of ControllerCore::Submit.
  Status Resume(sched::NewRequest request, std::string_view computed_by, OutputSink sink);

  // Calls of operators; any thread.
  ClusterStatus Describe() const;
  // `epoch`: receives the plan's epoch if the plan is accepted.
  Status ApplyPlan(Plan plan, std::vector<std::string> node_names, int64_t* epoch = nullptr);
  // Called when a plan has come into force, or was given up before that. The controller's lock is
  // held, so it must not block and must not call the controller.
  using PlanSettled = std::function<void(int64_t epoch, bool in_force)>;
  void OnPlanSettled(PlanSettled settled);
  // Returns what Unwatch takes. When that returns, the watcher is called no more.
  int Watch(RequestWatcher watcher);
  void Unwatch(int watcher);
  Status DrainWorker(std::string_view name);
  Status Migrate(RequestId request, std::string_view worker);

 private:
  // Holds the lock during a change. At the end it flushes the resulting actions, and wakes the
  // controller's thread if there are outputs.
  class MR_SCOPED_CAPABILITY Change {
   public:
    explicit Change(ControllerHost& host) MR_ACQUIRE(host.mutex_)
        : host_(host), lock_(host.mutex_) {}
    ~Change() MR_RELEASE();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    ControllerHost& host_;
    MutexLock lock_;
  };

  ControllerHost(ControllerHostOptions options, ControllerLinks links, const Clock& clock);
  void Run();
  // After every change: forms steps, sends messages and collects outputs.
  void FlushActions() MR_REQUIRES(mutex_);
  void Deliver() MR_REQUIRES(mutex_);
  void CheckJournal(Time now) MR_REQUIRES(mutex_);
  void FailUnrecorded(const Status& why) MR_REQUIRES(mutex_);
  void CountSteps() MR_REQUIRES(mutex_);
  void ReportPlans() MR_REQUIRES(mutex_);

  const ControllerHostOptions options_;
  const ControllerLinks links_;
  const Clock& clock_;

  Mutex submitting_ MR_ACQUIRED_BEFORE(mutex_);
  mutable Mutex mutex_;
  CondVar outputs_ready_;  // outputs_ is not empty, or the controller stops
  CondVar idle_;           // no request is left and all outputs are delivered
  std::unique_ptr<ControllerCore> controller_ MR_GUARDED_BY(mutex_);
  std::unordered_map<RequestId, OutputSink> sinks_ MR_GUARDED_BY(mutex_);
  std::vector<RequestOutput> outputs_ MR_GUARDED_BY(mutex_);
  std::vector<ControllerAction> actions_ MR_GUARDED_BY(mutex_);
  GeneratorStats stats_ MR_GUARDED_BY(mutex_);
  PlanSettled plan_settled_ MR_GUARDED_BY(mutex_);
  std::map<int, RequestWatcher> watchers_ MR_GUARDED_BY(mutex_);
  int last_watcher_ MR_GUARDED_BY(mutex_) = 0;
  ControllerCounters seen_ MR_GUARDED_BY(mutex_);
  uint64_t next_request_ MR_GUARDED_BY(mutex_);
  Status journal_state_ MR_GUARDED_BY(mutex_);  // of the latest check or write
  Time journal_checked_ MR_GUARDED_BY(mutex_);
  bool draining_ MR_GUARDED_BY(mutex_) = false;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  // Outputs being delivered to the sinks, one at a time. The vector is filled and emptied under
  // mutex_; in between only the controller's thread changes its elements.
  std::vector<RequestOutput> delivering_ MR_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace millrace::cluster
