// Deployment: what `millrace simulate` simulates, from flags to instances: a model on devices, cut
// and copied in a given way, and where its step times come from. One thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/engine_flags.h"
#include "apps/plan/node_costs.h"
#include "apps/simulate/membership.h"
#include "base/status.h"
#include "core/model_spec.h"
#include "cost/device_catalog.h"
#include "cost/step_cost.h"
#include "sim/routed.h"
#include "sim/service.h"

namespace millrace::apps {

struct DeploymentFlags {
  EngineFlags engine;  // `model` and the scheduler's sizes and policies
  std::string device, profile, distserve_profile;
  int tensor_parallel = 1, pipeline_parallel = 1;
  std::optional<int> instances;                     // one, or as many as a trace has machines
  std::string plan, cluster;                        // instead of a device and its numbers
  std::vector<std::string> node_profiles;           // DEVICE=FILE, of a plan's nodes
  int prefill_instances = 0, decode_instances = 0;  // both or none; then `instances` is their sum
  double kv_gb_per_s = 25;
  sched::StepMix step_mix = sched::StepMix::kMixed;
  std::optional<double> scheduler_overhead_us;  // else the profile's, or none
  bool pace = true;                             // of the profile
  double swap_gb_per_s = 25;
  MembershipFlags membership;
};

// The options bound to `flags`, which outlive the command.
void AddDeploymentOptions(Command& command, DeploymentFlags* flags);
Status ValidateDeployment(const DeploymentFlags& flags);

struct Deployment {
  std::string text;       // "opt-13b on 2 instances of 1 x a100-80gb"
  std::string cost_from;  // whose step times these are
  ModelSpec spec;
  std::vector<std::unique_ptr<cost::StepCost>> costs;  // one per stage
  std::shared_ptr<const cost::Pace> pace;              // of a profile that has one
  Duration front_end;                                  // the same
  sim::InstanceOptions instance;                       // of all; points into `costs`
  int instances = 1;
  int prefill_instances = 0;  // of them; the rest decodes, unless it is none
  sim::KvTransferOptions kv_transfer;
  std::optional<Membership> membership;
  std::optional<double> usd_per_hour;        // of all
  std::optional<sim::RoutedOptions> routed;  // of a plan: this, and no instances
};

// The stages of a plan as the router sees them, or instances all alike. kInvalidArgument with the
// numbers and the nearest that fits.
Result<Deployment> MakeDeployment(const DeploymentFlags& flags);

// A plan for a cluster and a model, each stage at its node's costs; of `flags` the scheduler's
// sizes and policies.
Result<Deployment> DeployPlan(Plan plan, ClusterSpec cluster, const ModelSpec& spec,
                              const NodeCosts& costs, const DeploymentFlags& flags);

// What MakeDeployment does with --plan.
Result<Deployment> MakePlanDeployment(const DeploymentFlags& flags);

}  // namespace millrace::apps
