// Runner: runs one deployment under one workload for any rate and seed. A run depends on nothing
// else. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "apps/simulate/deployment.h"
#include "base/status.h"
#include "cluster/autopilot/decision.h"
#include "sim/autopilot/autopilot_sim.h"
#include "sim/fast/service.h"
#include "sim/load/workload_file.h"
#include "sim/report/goodput.h"
#include "sim/report/plots.h"
#include "sim/report/report.h"

namespace millrace::apps {

// Request-level scheduling is the baseline that Orca compares itself with (OSDI'22, section 6).
enum class Scheduling { kIteration, kStatic };

struct RunOptions {
  Scheduling scheduling = Scheduling::kIteration;
  cluster::DispatchPolicy dispatch = cluster::DispatchPolicy::kFewestRequests;
  int num_seeds = 1;
  uint64_t first_seed = 0;
  std::optional<sim::AutopilotSimOptions> autopilot;  // of a deployment by node
};

class Runner {
 public:
  // All arguments outlive the runner.
  Runner(const Deployment& deployment, const sim::WorkloadSpec& workload, const RunOptions& options)
      : deployment_(deployment), workload_(workload), options_(options) {}

  // Runs all seeds. `rate` replaces the workload's own. `timeline` gets the first seed's steps.
  Result<sim::SimReport> Run(std::optional<double> rate, sim::Timeline* timeline = nullptr);
  // The highest rate that meets the workload's limits. REQUIRES: it has limits, and a rate.
  Result<sim::Goodput> FindGoodput(double tolerance);

  // The load over time of the last run's first seed.
  const std::vector<sim::LoadSample>& load() const { return load_; }
  // Those of its autopilot.
  const std::vector<cluster::Decision>& decisions() const { return decisions_; }
  // Called now and then with the number of requests simulated in all runs.
  std::function<void(uint64_t requests)> on_progress;

 private:
  Result<sim::ServiceReport> RunSeed(std::optional<double> rate, uint64_t seed,
                                     sim::Timeline* timeline);
  sim::ServiceReport RunStatic(sim::Workload& requests) const;
  Result<sim::ServiceReport> RunReplicas(sim::ServiceOptions options, sim::Workload& requests,
                                         sim::Timeline* timeline);
  Result<sim::ServiceReport> RunInstances(sim::ServiceOptions options, sim::Workload& requests,
                                          sim::Timeline* timeline);
  Result<sim::ServiceReport> RunPlan(sim::Workload& requests, sim::Timeline* timeline);
  sim::ServiceOptions OptionsOf(uint64_t seed) const;  // of instances
  std::function<void(uint64_t, Time)> Progress();
  std::vector<std::string> WorkerNames() const;  // of a plan
  void AddPlanNames(sim::SimReport& report) const;

  const Deployment& deployment_;
  const sim::WorkloadSpec& workload_;
  const RunOptions& options_;
  std::vector<sim::LoadSample> load_;
  std::vector<cluster::Decision> decisions_;  // of the last seed
  std::vector<sim::LinkSummary> links_;       // of a plan's last run
  double paid_usd_ = 0;                       // of a plan's nodes that came and went, over all runs
  uint64_t requests_before_ = 0;
};

}  // namespace millrace::apps
