// FleetHost: runs a Fleet beside a controller. Every second it shows it the cluster; the controller
// tells it of requests. The calls of each kind's provider run one at a time on a thread of their
// own, so a provider that hangs delays nobody else. Workers are drained as an operator drains them.
//
// Owned by the model that `serve --cluster` serves, and destroyed before the controller and its
// admin. Any thread may call it.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "base/mutex.h"
#include "cluster/fleet/fleet.h"
#include "cluster/runtime/controller_host.h"
#include "core/latency_limits.h"
#include "ops/fleet/machine_provider.h"
#include "serve/observe/cluster_admin.h"

namespace millrace::ops {

class FleetHost {
 public:
  static constexpr Duration kListEvery = Duration::Seconds(10);
  static constexpr Duration kPriceEvery = Duration::Seconds(60);

  // kInvalidArgument: a provider cannot be used here. The others outlive it.
  static Result<std::unique_ptr<FleetHost>> Start(cluster::FleetSpec spec,
                                                  const LatencyLimits& limits,
                                                  cluster::ControllerHost& controller,
                                                  serve::ClusterAdmin& admin, const Clock& clock);
  ~FleetHost();  // ends the calls that run

  cluster::FleetStatus Describe() const;
  const cluster::FleetSpec& spec() const { return spec_; }

 private:
  // A kind's provider and the thread that calls it.
  struct Calls {
    std::unique_ptr<MachineProvider> provider;  // null: there is none
    // Guarded by mutex_.
    Time list_at, price_at;
    bool asking = false;  // a list or a price: at most one waits
    std::unique_ptr<Mailbox> thread;
  };

  FleetHost(cluster::FleetSpec spec, const LatencyLimits& limits,
            cluster::ControllerHost& controller, serve::ClusterAdmin& admin, const Clock& clock);
  void Run();
  void Look();
  void AskProviders(Time now) MR_REQUIRES(mutex_);
  void List(size_t kind);  // on the kind's thread
  void Do(const cluster::AcquireMachines& order);
  void Do(const cluster::DrainMachine& drain);
  void Do(const cluster::ReleaseMachine& release);

  const cluster::FleetSpec spec_;
  cluster::ControllerHost& controller_;
  serve::ClusterAdmin& admin_;
  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar wake_;
  cluster::Fleet fleet_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::atomic<bool> stop_calls_ = false;
  int watcher_ = 0;
  std::vector<Calls> calls_;  // by kind
  std::thread thread_;
};

}  // namespace millrace::ops
