// ControllerView: what a controller shows of itself: its status, its counters, its requests one by
// one, and whether its tables agree. It reads the controller's parts and changes nothing.
//
// Owned by the controller. Pure; one thread at a time.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"
#include "cluster/control/controller_status.h"
#include "cluster/control/layout/deployment.h"
#include "cluster/control/layout/kv_memory.h"
#include "cluster/control/lifecycle/request_lifecycle.h"
#include "cluster/control/machine_reports.h"
#include "cluster/control/parts/controller_counters.h"
#include "cluster/control/parts/membership.h"
#include "cluster/control/pipelines/pipelines.h"
#include "cluster/control/routing/requests.h"
#include "cluster/control/transfers/transfers.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

class ControllerView {
 public:
  // They outlive the view.
  struct Parts {
    const Membership& members;
    const MachineReports& machines;
    const Deployment& deployment;
    const KvMemory& memory;
    const Pipelines& pipelines;
    const Requests& requests;
    const Transfers& transfers;
    const RequestLifecycle& lifecycle;
    const ControllerCounters& counters;  // of what is in no part
  };
  // What the status says of how the controller was started. Outlives the view.
  struct Options {
    Term term;
    const sched::SchedulerOptions& scheduler;
    bool cross_class_replay = false;
  };

  ControllerView(const Options& options, const Parts& parts) : options_(options), parts_(parts) {}

  // As of ControllerCore.
  ClusterStatus Describe(Time now) const;
  ControllerCounters counters() const;
  sched::SchedulerStats Stats() const;
  std::optional<sched::RequestInfo> Inspect(RequestId id, Time now) const;
  std::optional<TimeAccount> Account(RequestId id, Time now) const;
  std::vector<sched::RequestInfo> InspectAll(Time now) const;
  void CheckIntegrity() const;

 private:
  const Options options_;
  const Parts parts_;
};

}  // namespace millrace::cluster
