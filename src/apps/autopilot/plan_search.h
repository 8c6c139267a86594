// PlanSearch: what the autopilot's search does: it judges the plan in force under the load that was
// measured. If that plan does not carry the load, it plans for the workers that are there, as
// `millrace plan --live` does. The server and the simulator describe the machines to it. One thread
// at a time.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string_view>

#include "apps/plan/inputs.h"
#include "base/clock.h"
#include "cluster/autopilot/autopilot.h"
#include "cluster/control/controller_status.h"
#include "core/latency_limits.h"
#include "sim/load/workload_file.h"

namespace millrace::apps {

struct PlanSearchOptions {
  LatencyLimits limits;
  // Only a stop: the evaluations are bounded. Null: no stop, and the answer is a function of the
  // order, the status and the inputs. It outlives the search.
  const Clock* clock = nullptr;
  double time_limit_s = 20;
  double effort = 1;  // below 1: about that share of the evaluations
  // A plan that carries so many times the planned load is good enough. Unset: the best is wanted.
  std::optional<double> enough;
};

// The planner's inputs for the workers that could get layers, under this load.
using PlanInputsFor = std::function<Result<PlanInputs>(sim::WorkloadSpec load)>;

class PlanSearch {
 public:
  explicit PlanSearch(PlanSearchOptions options) : options_(options) {}

  // Never fails: the answer has a status.
  cluster::SearchAnswer operator()(const cluster::StartSearch& order,
                                   const cluster::ClusterStatus& status,
                                   const PlanInputsFor& inputs_for);
  // From another thread: a search that runs ends soon.
  void Stop() { stopped_ = true; }

 private:
  Result<cluster::SearchAnswer> Search(const cluster::StartSearch& order,
                                       const cluster::ClusterStatus& status,
                                       const PlanInputsFor& inputs_for);
  Time Now() const { return options_.clock != nullptr ? options_.clock->Now() : Time{}; }

  const PlanSearchOptions options_;
  std::atomic<bool> stopped_ = false;
};

// Whether a plan may give layers to the worker of this name: it has joined, and it does not leave.
bool MayGetLayers(const cluster::ClusterStatus& status, std::string_view worker);

}  // namespace millrace::apps
