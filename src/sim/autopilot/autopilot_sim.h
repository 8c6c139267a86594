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

  const cluster::Autopilot& autopilot() const { return autopilot_; }

 private:
  void Tick(Time now);
  void Act(const cluster::ClusterStatus& status, Time now);
  Result<int64_t> Apply(const std::string& text);

  const AutopilotSimOptions options_;
  ClusterSim& cluster_;
  cluster::Autopilot autopilot_;
  std::optional<Time> looked_;
  struct Search {
    Time until;
    uint64_t id = 0;
    cluster::SearchAnswer answer;
  };
  std::optional<Search> search_;
};

}  // namespace millrace::sim
