// PlanSearch: what the autopilot's search does: it plans for the workers that are there and for the
// load that was measured, as `millrace plan --live` does, and judges the plan in force under the
// same load. One thread at a time.
#pragma once

#include <atomic>
#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "cluster/autopilot/autopilot.h"
#include "cluster/control/controller_status.h"
#include "core/latency_limits.h"

namespace millrace::apps {

struct PlanSearchOptions {
  std::string model;  // its folder
  LatencyLimits limits;
  double time_limit_s = 20;  // only a stop: the evaluations are bounded
};

class PlanSearch {
 public:
  // `clock` outlives it.
  PlanSearch(PlanSearchOptions options, const Clock& clock)
      : options_(std::move(options)), clock_(clock) {}

  // `machines`: the answer of GET /cluster/machines. Never fails: the answer has a status.
  cluster::SearchAnswer operator()(const cluster::StartSearch& order,
                                   const cluster::ClusterStatus& status, const Json& machines);
  // From another thread: a search that runs ends soon.
  void Stop() { stopped_ = true; }

 private:
  Result<cluster::SearchAnswer> Search(const cluster::StartSearch& order,
                                       const cluster::ClusterStatus& status, const Json& machines);

  const PlanSearchOptions options_;
  const Clock& clock_;
  std::atomic<bool> stopped_ = false;
};

}  // namespace millrace::apps
