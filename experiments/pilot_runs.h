// Runs of a simulated cluster whose plan may change: with the autopilot, with a plan for each time,
// or with one plan throughout; and the share of good answers over time. One thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/autopilot/simulated_search.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/autopilot/autopilot.h"
#include "core/cluster_spec.h"
#include "core/plan.h"
#include "sim/load/workload_file.h"
#include "sim/machines/membership.h"

namespace millrace::experiments {

struct PilotSetup {
  const apps::SimulatedSearch* search = nullptr;  // of the cluster; not owned
  sim::WorkloadSpec workload;                     // with limits
  uint64_t seed = 1;
  Duration load_time = Duration::Seconds(30);  // of the layers of another plan
  std::vector<sim::MembershipChange> membership;
  double window_s = 60;  // of PilotRun::windows
  std::function<void(Time)> progress;
  // Of the clock on the wall: a run that takes longer ends early.
  std::optional<double> limit_s;
};

// What changes the plan: nothing, the autopilot, or a schedule.
struct PlanAt {
  Time at;  // applied then
  Plan plan;
};
struct Policy {
  std::optional<cluster::AutopilotOptions> autopilot;
  std::vector<PlanAt> schedule;  // by time
};

struct PilotRun {
  struct Window {  // of the requests that arrived in it
    uint64_t requests = 0, good = 0;
    double share() const {
      return requests == 0 ? 1 : static_cast<double>(good) / static_cast<double>(requests);
    }
  };
  std::vector<Window> windows;
  uint64_t requests = 0, good = 0, refused = 0;
  double simulated_s = 0, usd = 0;  // of the nodes, while they were there
  uint64_t changes = 0;             // plans that came into force after the first
  uint64_t searches = 0;
  double took_s = 0;     // on the wall
  bool stopped = false;  // by the limit; what was not answered by then is not good
  std::vector<cluster::Decision> decisions;  // those that are kept

  double share() const {
    return requests == 0 ? 1 : static_cast<double>(good) / static_cast<double>(requests);
  }
  Window Between(double from_s, double to_s, double window_s) const;
};

Result<PilotRun> RunPilot(const PilotSetup& setup, const Plan& first, const Policy& policy);

}  // namespace millrace::experiments
