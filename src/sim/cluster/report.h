// ClusterReport: what a run of ClusterSim showed. A value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cluster/control/controller_status.h"
#include "sim/fast/instance.h"
#include "sim/machines/links.h"
#include "sim/machines/membership.h"
#include "sim/record/load.h"
#include "sim/record/recorder.h"

namespace millrace::sim {

struct ClusterReport {
  LatencyReport latency;
  double measured_s = 0;   // from measure_from to the end
  double simulated_s = 0;  // of the whole run
  // By stage of the plan.
  std::vector<double> stage_busy_share;  // while its nodes were ready
  // `steps` counts the parts of its batches. KV is that of the pipelines that begin there, sampled.
  std::vector<InstanceUse> stage_use;
  std::vector<LinkUse> links;
  std::vector<double> node_sending_share;  // of its network card, by node of the cluster
  std::vector<LoadSample> load;            // evenly over arrivals
  // Of hand-overs: from the first token to the start of the pull, and every pull of KV.
  Quantiles kv_wait, kv_transfer;
  uint64_t steps = 0, batches = 0, events = 0;
  uint64_t prefix_query_tokens = 0, prefix_hit_tokens = 0;  // of all pipelines
  cluster::ControllerCounters controller;
  std::optional<MembershipReport> membership;
  std::vector<double> node_paid_s;  // with membership, by node of the cluster
};

}  // namespace millrace::sim
