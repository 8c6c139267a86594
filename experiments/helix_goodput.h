// What users get from a placement at a given number of requests in flight, by a few lines of
// queueing: how often a node comes round to its first layer, how long prompts hold up a link, and
// Little's law. And a seeded search for the placement with the most. It guides; the simulator
// decides. One thread per call.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cluster_spec.h"
#include "plan/flow_problem.h"
#include "plan/placement_flow.h"
#include "sim/compat/helix_model.h"

namespace millrace::experiments {

struct GoodputProblem {
  const sim::HelixModel* model = nullptr;
  const ClusterSpec* cluster = nullptr;
  const plan::FlowProblem* flow = nullptr;  // without partial inference
  double mean_input_tokens = 763, mean_output_tokens = 232;
  double in_flight = 0;  // requests
};

struct Goodput {
  double requests_per_s = 0;
  double decode_s = 0;  // of one iteration, on average
};

// None: it carries nothing, or its caches do not hold so many.
Goodput EstimateGoodput(const GoodputProblem& problem, const plan::Placement& placement);

// Simulated annealing from `start`, `iterations` proposals; a function of its arguments.
plan::Placement SearchGoodput(const GoodputProblem& problem, const plan::Placement& start,
                              int64_t iterations, uint64_t seed);

}  // namespace millrace::experiments
