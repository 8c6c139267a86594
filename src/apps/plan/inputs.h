// The inputs of the `plan` commands, from flags to the problem that the planner works on: a cluster
// of a file, and either a table of capacities or a model whose cost on each device is computed.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "apps/plan/node_costs.h"
#include "base/status.h"
#include "core/cluster_spec.h"
#include "core/model_spec.h"
#include "plan/flow_from_cluster.h"
#include "plan/flow_problem.h"
#include "plan/goodput_from_cluster.h"
#include "plan/trunks.h"
#include "sim/recorder.h"
#include "sim/workload_file.h"

namespace millrace::apps {

struct PlanInputFlags {
  std::string cluster, import_helix;       // one of them
  std::string capacity;                    // a table; else the model's cost is computed
  std::string model;                       // a known shape, a config.json, or a model folder
  std::vector<std::string> node_profiles;  // DEVICE=FILE
  std::string workload;
  bool partial = true;
};

struct PlanInputs {
  ClusterSpec cluster;
  plan::FlowProblem problem;
  std::optional<plan::GoodputProblem> goodput;  // unless the rates are of a table
  plan::TokenBytes token_bytes;
  double request_tokens = 0;             // prompt and output of a request, in the mean
  std::optional<double> requests_per_s;  // of --workload
  sim::Slo slo;                          // of --workload
  std::optional<sim::WorkloadSpec> workload;
  ModelSpec spec;          // unless the rates are of a table
  NodeCosts costs;         // the same
  std::string rates_from;  // where T(k) comes from, for the reader
};

// The options bound to `flags`, which outlive the command.
void AddPlanInputOptions(Command& command, PlanInputFlags* flags);
Status ValidatePlanInputs(const PlanInputFlags& flags);
Result<PlanInputs> LoadPlanInputs(const PlanInputFlags& flags);

// The cluster of --cluster or --import-helix alone.
Result<ClusterSpec> LoadCluster(const PlanInputFlags& flags);

// What a model takes: of a shape known by name, a config.json, or the config.json of a folder.
Result<plan::ModelFootprint> LoadFootprint(const std::string& model);

}  // namespace millrace::apps
