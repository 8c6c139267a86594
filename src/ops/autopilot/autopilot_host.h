// AutopilotHost: runs an Autopilot beside a controller. Every second it shows it the cluster; the
// controller tells it of requests. Searches run one at a time on a thread of their own, which gives
// way to serving. Plans are applied as an operator applies them.
//
// Owned by the model that `serve --cluster` and `up` serve, and destroyed before the controller and
// its admin. Any thread may call it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/mailbox.h"
#include "base/mutex.h"
#include "cluster/autopilot/autopilot.h"
#include "cluster/runtime/controller_host.h"
#include "serve/observe/cluster_admin.h"

namespace millrace::ops {

struct AutopilotHostOptions {
  cluster::AutopilotOptions autopilot;
  // Called on the search thread.
  std::function<cluster::SearchAnswer(const cluster::StartSearch& order,
                                      const cluster::ClusterStatus& status)>
      search;
  // Stores all decisions, the oldest first. May block. Empty: they are not stored.
  std::function<void(const std::vector<cluster::Decision>& decisions)> store;
  std::vector<cluster::Decision> earlier;  // as stored by the controller before
};

// What GET /cluster/decisions, the status and /metrics show.
struct AutopilotStatus {
  std::string state;
  cluster::AutopilotOptions options;
  cluster::MeasuredLoad load;
  cluster::MeasuredService service;
  std::vector<cluster::Decision> decisions;  // the oldest first
  std::optional<cluster::Decision> advice;
};

class AutopilotHost {
 public:
  // The others outlive it.
  AutopilotHost(AutopilotHostOptions options, cluster::ControllerHost& controller,
                serve::ClusterAdmin& admin, const Clock& clock);
  ~AutopilotHost();  // waits for a search that runs

  AutopilotStatus Describe() const;

 private:
  void Run();
  void Look();
  void Do(std::vector<cluster::AutopilotAction> actions, const cluster::ClusterStatus& status);
  void Do(const cluster::StartSearch& order, const cluster::ClusterStatus& status);
  void Do(const cluster::ApplyPlan& apply);
  void Store();

  const AutopilotHostOptions options_;
  cluster::ControllerHost& controller_;
  serve::ClusterAdmin& admin_;
  const Clock& clock_;
  mutable Mutex mutex_;
  CondVar wake_;
  cluster::Autopilot autopilot_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  bool look_now_ MR_GUARDED_BY(mutex_) = false;
  int watcher_ = 0;
  std::thread thread_;
  Mailbox searches_;  // last: its work uses the other members
};

}  // namespace millrace::ops
