// Machines for tests of plans with times computed by hand. One thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "sim/cluster/cluster_sim.h"
#include "sim/testing_costs.h"

namespace millrace::sim {

// A machine of kPerLayer for the plan's layers. It lives as long as the test program.
inline const MachineModel* MachineOf(const Plan& plan, int64_t kv_token_layers,
                                     const cost::StepCost* head = nullptr) {
  static std::vector<std::unique_ptr<LayeredMachine>> machines;
  machines.push_back(std::make_unique<LayeredMachine>(
      LayeredMachine::Options{.per_layer = &kPerLayer,
                              .head = head,
                              .num_layers = plan.num_layers,
                              .kv_token_layers = [=](LayerRange) { return kv_token_layers; }}));
  return machines.back().get();
}

// So many replicas of ten layers, each on a machine of its own with room for every request.
inline ClusterSimOptions ReplicaOptions(int replicas) {
  ClusterSimOptions options;
  options.plan = {.num_layers = 10, .tokens_per_s = 100.0 * replicas};
  for (int i = 0; i < replicas; ++i) {
    options.plan.stages.push_back({.nodes = {i}, .layers = {0, 10}});
    options.plan.edges.push_back({std::nullopt, i, 100});
    options.plan.edges.push_back({i, std::nullopt, 100});
    options.cluster.nodes.push_back({.name = "n" + std::to_string(i)});
  }
  options.other_links = OtherLinks{.bytes_per_s = 1e12};
  options.machines.assign(static_cast<size_t>(replicas), MachineOf(options.plan, int64_t{1} << 24));
  return options;
}

inline void ExpectNoKvLeft(const ClusterSim& sim) {
  const sched::SchedulerStats stats = sim.controller().Stats();
  EXPECT_EQ(stats.blocks_free, stats.blocks_total) << "KV is still held";
  EXPECT_EQ(sim.controller().requests(), 0u);
  sim.controller().CheckIntegrity();
}

}  // namespace millrace::sim
