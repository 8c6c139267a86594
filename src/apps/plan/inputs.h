// The inputs of the `plan` commands, from flags to the planner's problem: a cluster file, and
// either a table of capacities or a model whose cost on each device is computed. One thread.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "apps/common/engine_flags.h"
#include "apps/plan/node_costs.h"
#include "base/status.h"
#include "core/cluster_spec.h"
#include "core/model_spec.h"
#include "plan/distserve/goodput_from_cluster.h"
#include "plan/flow/flow_from_cluster.h"
#include "plan/flow/flow_problem.h"
#include "plan/flow/trunks.h"
#include "sim/load/workload_file.h"
#include "sim/record/recorder.h"

namespace millrace::apps {

struct PlanInputFlags {
  std::string cluster, import_helix;       // exactly one of them, or `live`
  std::string live;                        // the controller's URL
  std::string live_text;                   // the cluster file that it gave; set before loading
  std::string capacity;                    // a table; if empty, the model's cost is computed
  std::string model;                       // a known shape, a config.json, or a model folder
  std::vector<std::string> node_profiles;  // DEVICE=FILE
  std::string workload;
  bool partial = true;
  // The sizes with which the server that carries out the plan runs steps. What no option gives
  // comes from the cluster's description, and else from the server's defaults.
  EngineFlags engine;
};

struct PlanInputs {
  ClusterSpec cluster;
  plan::FlowProblem problem;
  std::optional<plan::GoodputProblem> goodput;  // unset if the rates come from a table
  // The same for another cluster with the same model and requests. Empty if the rates come from a
  // table.
  std::function<Result<plan::GoodputProblem>(const ClusterSpec&)> goodput_for;
  plan::TokenBytes token_bytes;
  double request_tokens = 0;             // mean prompt and output of a request
  std::optional<double> requests_per_s;  // of --workload
  LatencyLimits limits;                  // of --workload
  std::optional<sim::WorkloadSpec> workload;
  ModelSpec spec;          // unset if the rates come from a table
  NodeCosts costs;         // unset if the rates come from a table
  std::string rates_from;  // the source of the rates; shown to the user
  EngineFlags engine;      // the sizes that apply
  std::string steps_from;  // the sizes and their sources, for the user; empty: the defaults
};

// Options bound to `flags`, which must outlive the command. Of the server's sizes, those that the
// estimates know.
void AddPlanInputOptions(Command& command, PlanInputFlags* flags);
// The server's other sizes, which only the simulator knows.
void AddSimulatedSizeOptions(Command& command, PlanInputFlags* flags);
// Refuses those among `given`, for a command line that simulates nothing.
Status RefuseSimulatedSizes(const std::set<std::string>& given);
// Adds --partial, for a command that makes a plan. A plan from a file records the setting itself.
void AddPartialOption(Command& command, PlanInputFlags* flags);
Status ValidatePlanInputs(const PlanInputFlags& flags);
// `workload`: the requests, in place of --workload.
Result<PlanInputs> LoadPlanInputs(const PlanInputFlags& flags,
                                  std::optional<sim::WorkloadSpec> workload = {});
// The same for a cluster and a model at hand. Of `flags`, the sizes of steps and `partial` count.
Result<PlanInputs> MakePlanInputs(const PlanInputFlags& flags, ClusterSpec cluster,
                                  const plan::ModelFootprint& model, NodeCosts costs,
                                  std::optional<sim::WorkloadSpec> workload);

// The problem with limits on the latency; the estimates compare them with means.
plan::GoodputProblem WithLimits(plan::GoodputProblem problem, const LatencyLimits& limits);

// Only the cluster of --cluster or --import-helix.
Result<ClusterSpec> LoadCluster(const PlanInputFlags& flags);

// The memory and compute needs of a model: a shape known by name, a config.json, or a folder with
// one.
Result<plan::ModelFootprint> LoadFootprint(const std::string& model);

}  // namespace millrace::apps
