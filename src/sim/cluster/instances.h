// InstanceCluster: equal or unlike instances of a model as a cluster, one machine each: prefill and
// decode apart, machines that come and go. Runs on ClusterSim and reports like Service, which is
// the fast path for instances that do both and stay. One thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/plan.h"
#include "sim/cluster/cluster_sim.h"
#include "sim/cluster/machine.h"
#include "sim/fast/service.h"

namespace millrace::sim {

// How KV gets from one instance to another: pulled over the network cards of both.
struct KvTransferOptions {
  double kv_bytes_per_token = 0;
  double bytes_per_s = 0;  // of one card
  double latency_s = 0;
};

struct InstanceClusterOptions {
  ServiceOptions service;
  std::vector<StageRole> roles;  // by instance; empty: all do both
  KvTransferOptions kv_transfer;
  // Ordered by time; empty: all instances are always present.
  std::vector<MembershipChange> membership;
  OnNotice on_notice = OnNotice::kMove;
  // As the controller's: a request fails once it has lost this many machines without a token in
  // between.
  int deaths_max = cluster::ControllerOptions().deaths_max;
};

class InstanceCluster {
 public:
  // kInvalidArgument if an instance's options or the roles contradict each other. REQUIRES: the
  // schedulers of all instances differ in their number of blocks only.
  static Result<std::unique_ptr<InstanceCluster>> Create(const InstanceClusterOptions& options);

  // Runs the workload to its end (or to stop_at). Call once.
  ServiceReport Run(Workload& workload);

  // Called with every batch of a stage of an instance: one begin, one end.
  void OnBatch(std::function<void(int instance, int stage, const StepRecord&)> observe);
  ClusterSim& cluster() { return *cluster_; }

 private:
  explicit InstanceCluster(const InstanceClusterOptions& options);
  ClusterSimOptions OptionsOf(const InstanceClusterOptions& options);
  void AddInstance(const InstanceClusterOptions& options, int index, ClusterSimOptions& out);

  int num_layers_ = 1;                                   // enough for every instance's stages
  std::vector<std::unique_ptr<StageMachine>> machines_;  // by stage of the plan
  std::vector<std::pair<int, int>> stage_of_;            // instance and its stage, the same
  std::vector<int> first_stage_;                         // by instance
  std::unique_ptr<ClusterSim> cluster_;
};

}  // namespace millrace::sim
