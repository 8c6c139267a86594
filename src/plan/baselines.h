// Placements of other systems, to compare with and to start from: Swarm's equal stages, Petals'
// greedy spans, and one pipeline per kind of device (Helix, ASPLOS'25, section 6.2). All keep
// within each node's memory. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/flow_problem.h"

namespace millrace::plan {

// Equal stages, as few as let the weakest node hold one; nodes in falling order of rate, each to
// the stage with the least rate. None when there are fewer nodes than stages.
std::optional<Placement> SwarmPlacement(const FlowProblem& problem);

// Nodes in an order drawn from `seed`, each with as many layers as it holds, where the sorted rates
// of the layers it would cover are smallest.
Placement PetalsPlacement(const FlowProblem& problem, uint64_t seed);

// For each kind that can hold the model alone, one chain of its nodes at the kind's own threshold;
// other kinds stay unused. None when no kind can.
std::optional<Placement> SeparatePipelines(const FlowProblem& problem);

}  // namespace millrace::plan
