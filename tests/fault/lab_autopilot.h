// LabAutopilot: the production Autopilot over the fault lab's controller. Its searches answer by
// chance: plans for the workers that are there, with forecasts that are often wrong, or nothing, or
// an error. So it changes the plan often, at bad moments, and takes changes back.
//
// Part of the controller's process; the decisions outlive it, as in the cluster's store. One
// thread.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "base/rng.h"
#include "cluster/control/controller_status.h"
#include "sim/autopilot/virtual_autopilot.h"
#include "tests/fault/scenario.h"

namespace millrace::sim::fault {

class LabAutopilot {
 public:
  // `apply` returns the epoch of the plan, or why it was refused.
  LabAutopilot(const Scenario& scenario, std::function<Result<int64_t>(WorkerPlan)> apply)
      : scenario_(scenario), apply_(std::move(apply)), rng_(Mix64(scenario.seed ^ 0x6175746f)) {}

  void Start();  // with a controller
  void Arrived(RequestId id, int prompt_tokens, Time now) {
    pilot_->autopilot().Arrived(id, prompt_tokens, now);
  }
  void Heard(const RequestOutput& output, Time now) { pilot_->autopilot().Heard(output, now); }
  void Tick(const cluster::ClusterStatus& status, Time now) { pilot_->Tick(status, now); }

  uint64_t changes() const { return changes_; }  // ordered, over all controllers

 private:
  cluster::SearchAnswer Search(const cluster::ClusterStatus& status);
  Result<int64_t> Apply(WorkerPlan plan);

  const Scenario& scenario_;
  const std::function<Result<int64_t>(WorkerPlan)> apply_;
  Rng rng_;
  std::optional<VirtualAutopilot> pilot_;
  uint64_t changes_ = 0;
};

}  // namespace millrace::sim::fault
