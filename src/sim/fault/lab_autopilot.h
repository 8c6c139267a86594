// LabAutopilot: the production Autopilot over the fault lab's controller. Its searches answer by
// chance: plans for the workers that are there, with forecasts that are often wrong, or nothing, or
// an error. So it changes the plan often, at bad moments, and takes changes back.
//
// Part of the controller's process; the decisions outlive it, as in the cluster's store. One
// thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/rng.h"
#include "cluster/autopilot/autopilot.h"
#include "cluster/control/controller_status.h"
#include "plan/io/plan_yaml.h"
#include "sim/fault/scenario.h"

namespace millrace::sim::fault {

class LabAutopilot {
 public:
  explicit LabAutopilot(const Scenario& scenario);

  void Start();  // with a controller
  void Arrived(RequestId id, int prompt_tokens, Time now);
  void Heard(const RequestOutput& output, Time now) { autopilot_->Heard(output, now); }
  // `apply` returns the epoch of the plan, or why it was refused.
  void Tick(const cluster::ClusterStatus& status, Time now,
            const std::function<Result<int64_t>(plan::WorkerPlan)>& apply);

  uint64_t changes() const { return changes_; }  // ordered, over all controllers

 private:
  struct Search {
    Time until;
    uint64_t id = 0;
    cluster::SearchAnswer answer;
  };
  cluster::SearchAnswer Answer(const cluster::ClusterStatus& status);

  const Scenario& scenario_;
  Rng rng_;
  std::unique_ptr<cluster::Autopilot> autopilot_;
  std::vector<cluster::Decision> kept_;
  std::optional<Search> search_;
  uint64_t changes_ = 0;
};

}  // namespace millrace::sim::fault
