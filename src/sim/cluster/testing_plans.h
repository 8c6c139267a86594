// Machines for tests of plans with times computed by hand. One thread.
#pragma once

#include <gtest/gtest.h>

#include <memory>
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

inline void ExpectNoKvLeft(const ClusterSim& sim) {
  const sched::SchedulerStats stats = sim.controller().Stats();
  EXPECT_EQ(stats.blocks_free, stats.blocks_total) << "KV is still held";
  EXPECT_EQ(sim.controller().requests(), 0u);
  sim.controller().CheckIntegrity();
}

}  // namespace millrace::sim
