// AutopilotSim: a simulated cluster with the autopilot of the server: the same object sees the same
// things and changes the plan through the same calls, on the virtual clock. Searches take a given
// time.
//
// Owned by the caller, who runs the ClusterSim. One thread; a run is a function of its inputs.
#pragma once

#include <functional>
#include <optional>

#include "base/clock.h"
#include "cluster/autopilot/autopilot.h"
#include "cluster/control/controller_status.h"
#include "sim/autopilot/virtual_autopilot.h"
#include "sim/cluster/cluster_sim.h"

namespace millrace::sim {

struct AutopilotSimOptions {
  cluster::AutopilotOptions autopilot;
  Duration search_time = Duration::Seconds(5);
  // Returns at once; its answer is delivered after search_time.
  std::function<cluster::SearchAnswer(const cluster::StartSearch& order,
                                      const cluster::ClusterStatus& status)>
      search;
};

class AutopilotSim {
 public:
  // Sets the callbacks of `cluster`, which outlives it. REQUIRES: SimWorkers::kByNode.
  AutopilotSim(AutopilotSimOptions options, ClusterSim& cluster);
  AutopilotSim(const AutopilotSim&) = delete;

  const cluster::Autopilot& autopilot() const { return pilot_.autopilot(); }

 private:
  void Tick(Time now);

  ClusterSim& cluster_;
  VirtualAutopilot pilot_;
  std::optional<Time> looked_;
};

}  // namespace millrace::sim
