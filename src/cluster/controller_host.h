// ControllerHost: the controller's body in a server: a ControllerCore with a clock, a lock, and the
// sinks of those who asked. To a front end it is a Generator like an Engine.
//
// Messages are applied on the threads that bring them, under the lock, and what follows from them
// is sent at once: nobody on the way of a step waits for a thread to wake. News is handed to sinks
// by the controller's own thread, which also brings the time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "cluster/controller_core.h"
#include "engine/generator.h"

namespace millrace::cluster {

// How the controller reaches workers. May be called from any thread, with the controller's lock
// held: they must not wait and not call back.
struct ControllerLinks {
  std::function<void(ConnectionId to, const ToWorker& message)> send;
  std::function<void(ConnectionId connection, const std::string& reason)> disconnect;
};

// What is to be on record before a client hears of it. May wait for a disk: called without the
// controller's lock, `accepted` by submitters one after the other in the order of the ids, `told`
// on the controller's thread. Where one fails the requests it was called for fail with its status.
struct ControllerJournal {
  std::function<Status(const sched::NewRequest& request, const engine::EngineRequest& asked)>
      accepted;
  std::function<Status(const std::vector<RequestOutput>& outputs)> delivered;
};

struct ControllerHostOptions {
  ControllerOptions controller;
  uint64_t seed = 0;           // for requests that bring none
  uint64_t first_request = 1;  // ids go on from here: above those of an earlier life
  ControllerJournal journal;   // empty functions: no journal
};

class ControllerHost : public engine::Generator {
 public:
  // `clock` outlives the controller.
  static Result<std::unique_ptr<ControllerHost>> Start(ControllerHostOptions options,
                                                       ControllerLinks links, const Clock& clock);
  ~ControllerHost() override;  // closes
  // Ends what runs and joins the thread. What workers say afterwards is ignored.
  void Close();

  // From workers; any thread.
  void Receive(ConnectionId from, ToController message);
  void Beat(ConnectionId from, const Heartbeat& beat);
  void ConnectionLost(ConnectionId connection, const Status& reason);

  Result<RequestId> Submit(engine::EngineRequest request, engine::OutputSink sink) override;
  void Abort(RequestId request, std::optional<int> index = {}) override;
  engine::EngineStats Stats() const override;
  std::optional<sched::RequestInfo> Inspect(RequestId request) const override;
  std::vector<sched::RequestInfo> InspectAll() const override;
  std::optional<std::string> NotReady() const override;
  bool Drain(Duration limit) override;

  // A request of an earlier life, from the journal.
  Status Resume(sched::NewRequest request, engine::OutputSink sink);

  // Operators; any thread.
  ClusterStatus Describe() const;
  // `epoch`: of the plan, if it is taken.
  Status ApplyPlan(Plan plan, std::vector<std::string> node_names, int64_t* epoch = nullptr);
  // Called when a plan has come into force, or was given up before that; with the controller's lock
  // held, so it must not wait and not call back.
  using PlanSettled = std::function<void(int64_t epoch, bool in_force)>;
  void OnPlanSettled(PlanSettled settled);
  Status DrainWorker(std::string_view name);
  Status Migrate(RequestId request, std::string_view worker);

 private:
  // The lock while something changes; at its end what follows, then the controller's thread wakes.
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
  // After every change: steps, messages, output.
  void FlushActions() MR_REQUIRES(mutex_);
  void Deliver() MR_REQUIRES(mutex_);
  void FailUnrecorded(const Status& why) MR_REQUIRES(mutex_);
  void CountSteps() MR_REQUIRES(mutex_);
  void TellOfPlans() MR_REQUIRES(mutex_);

  const ControllerHostOptions options_;
  const ControllerLinks links_;
  const Clock& clock_;

  Mutex submitting_ MR_ACQUIRED_BEFORE(mutex_);
  mutable Mutex mutex_;
  CondVar outputs_ready_;  // outputs_ has something, or the controller stops
  CondVar idle_;           // no request is left, and all is told
  std::unique_ptr<ControllerCore> controller_ MR_GUARDED_BY(mutex_);
  std::unordered_map<RequestId, engine::OutputSink> sinks_ MR_GUARDED_BY(mutex_);
  std::vector<RequestOutput> outputs_ MR_GUARDED_BY(mutex_);
  std::vector<ControllerAction> actions_ MR_GUARDED_BY(mutex_);
  engine::EngineStats stats_ MR_GUARDED_BY(mutex_);
  PlanSettled plan_settled_ MR_GUARDED_BY(mutex_);
  ControllerCounters seen_ MR_GUARDED_BY(mutex_);
  uint64_t next_request_ MR_GUARDED_BY(mutex_);
  bool draining_ MR_GUARDED_BY(mutex_) = false;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  // Being delivered to the sinks, one by one. It is filled and emptied under mutex_; in between the
  // controller's thread alone changes its elements.
  std::vector<RequestOutput> delivering_ MR_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace millrace::cluster
