// AutopilotHost: runs an Autopilot as the companion of a controller. Searches run one at a time on
// a thread of their own, which gives way to serving. Plans are applied as an operator applies them.
//
// Owned by the model that `serve --cluster` and `up` serve, and destroyed before the controller and
// its admin. Any thread may call it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mailbox.h"
#include "cluster/autopilot/autopilot.h"
#include "ops/cluster/companion.h"
#include "serve/observe/cluster_admin.h"

namespace millrace::ops {

struct AutopilotHostOptions {
  cluster::AutopilotOptions autopilot;
  // Called on the search thread.
  std::function<cluster::SearchAnswer(const cluster::StartSearch& order,
                                      const cluster::ClusterStatus& status)>
      search;
  std::function<void()> stop_search;  // a search that runs ends soon; so does each one after it
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
  void Look(const cluster::ClusterStatus& status, double unix_s);
  void Search(const cluster::StartSearch& order, const cluster::ClusterStatus& status);

  const AutopilotHostOptions options_;
  serve::ClusterAdmin& admin_;
  Companion<cluster::Autopilot> companion_;
  Mailbox searches_;  // last: its work uses the other members
};

}  // namespace millrace::ops
