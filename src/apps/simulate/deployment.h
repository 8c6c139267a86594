// Deployment: the system that `millrace simulate` simulates, made from flags: a model on devices,
// its partition and copies, and the source of its step times. One thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/engine_flags.h"
#include "apps/plan/node_costs.h"
#include "apps/simulate/membership.h"
#include "base/status.h"
#include "core/model_spec.h"
#include "cost/device_catalog.h"
#include "cost/step_cost.h"
#include "sim/cluster/cluster_sim.h"
#include "sim/cluster/instances.h"
#include "sim/fast/service.h"

namespace millrace::apps {

struct DeploymentFlags {
  EngineFlags engine;  // `model` and the scheduler's sizes and policies
  std::string device, profile, distserve_profile;
  int tensor_parallel = 1, pipeline_parallel = 1;
  std::optional<int> instances;  // default: 1, or the most machines of a trace
  std::string plan, cluster;     // instead of a device and its numbers
  std::optional<Plan> found;     // without `plan`: the plan that was found
  // The workers are the cluster's nodes, not the plan's stages, so the plan can change.
  bool by_node = false;
  std::vector<std::string> node_profiles;           // DEVICE=FILE, of a plan's nodes
  int prefill_instances = 0, decode_instances = 0;  // both or neither; `instances` is their sum
  std::optional<double> kv_gb_per_s;                // none: the profile's
  sched::StepMix step_mix = sched::StepMix::kMixed;
  bool shares_prefixes = false;                 // the workload's prompts do
  std::optional<double> scheduler_overhead_us;  // default: the profile's, or zero
  bool pace = true;                             // of the profile
  double swap_gb_per_s = 25;
  MembershipFlags membership;
};

// Options bound to `flags`, which must outlive the command.
void AddDeploymentOptions(Command& command, DeploymentFlags* flags);
Status ValidateDeployment(const DeploymentFlags& flags);

// A plan of unequal stages. `options` points into the machines, and these into Deployment::costs.
struct PlanDeployment {
  sim::ClusterSimOptions options;
  std::vector<std::unique_ptr<sim::MachineModel>> machines;  // by stage, or by node
};

struct Deployment {
  std::string text;       // "opt-13b on 2 instances of 1 x a100-80gb"
  std::string cost_from;  // the source of the step times
  ModelSpec spec;
  std::vector<std::unique_ptr<cost::StepCost>> costs;  // one per stage
  std::shared_ptr<const cost::Pace> pace;              // of the profile, if it has one
  Duration front_end;                                  // of the profile, if it has one
  sim::InstanceOptions instance;  // options of all instances; points into `costs`
  int instances = 1;
  int prefill_instances = 0;  // the others decode; 0: all instances do both
  sim::KvTransferOptions kv_transfer;
  std::optional<Membership> membership;
  std::optional<double> usd_per_hour;  // of all
  std::optional<PlanDeployment> plan;  // then there are no instances
};

// The sizes of the server of a plan: what no option says is as the server has it, unless the
// cluster file says it.
EngineFlags PlanEngine(EngineFlags given);

// Makes either the stages of a plan or equal instances. kInvalidArgument if the
// model does not fit; the message has the numbers and the nearest configuration that fits.
Result<Deployment> MakeDeployment(const DeploymentFlags& flags);

// Makes the deployment of a plan for a cluster and a model, with each stage at its node's costs.
// `flags` gives the scheduler's sizes and policies.
Result<Deployment> DeployPlan(Plan plan, ClusterSpec cluster, const ModelSpec& spec,
                              const NodeCosts& costs, const DeploymentFlags& flags);

// The part of MakeDeployment for --plan.
Result<Deployment> MakePlanDeployment(const DeploymentFlags& flags);

}  // namespace millrace::apps
