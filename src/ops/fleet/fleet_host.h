// FleetHost: runs a Fleet as the companion of a controller. The calls of each kind's provider run
// one at a time on a thread of their own, so a provider that hangs delays nobody else. Workers are
// drained as an operator drains them.
//
// Owned by the model that `serve --cluster` serves, and destroyed before the controller and its
// admin. Any thread may call it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "cluster/fleet/fleet.h"
#include "core/latency_limits.h"
#include "ops/cluster/companion.h"
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
    // Guarded by the companion's lock.
    Time list_at, price_at;
    bool asking = false;  // a list or a price: at most one waits
    std::unique_ptr<Mailbox> thread;
  };

  FleetHost(cluster::FleetSpec spec, const LatencyLimits& limits,
            cluster::ControllerHost& controller, serve::ClusterAdmin& admin, const Clock& clock);
  void Look(const cluster::ClusterStatus& status, double unix_s);
  void AskProviders(Time now);  // with the companion's lock held
  void List(size_t kind);       // on the kind's thread
  void Do(const cluster::AcquireMachines& order);
  void Do(const cluster::DrainMachine& drain);
  void Do(const cluster::ReleaseMachine& release);

  const cluster::FleetSpec spec_;
  serve::ClusterAdmin& admin_;
  std::atomic<bool> stop_calls_ = false;
  Companion<cluster::Fleet> companion_;
  std::vector<Calls> calls_;  // by kind; last: their work uses the other members
};

}  // namespace millrace::ops
