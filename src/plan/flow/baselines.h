// Placements of other systems, as comparisons and starting points: Swarm's equal stages, Petals'
// greedy spans, and one pipeline per kind of device (Helix, ASPLOS'25, section 6.2). Each stays
// within the nodes' memory. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/flow/flow_problem.h"

namespace millrace::plan {

// Equal stages, as few as let the weakest node hold one. Nodes in falling order of rate each go to
// the stage with the least rate. None if there are fewer nodes than stages.
std::optional<Placement> SwarmPlacement(const FlowProblem& problem);

// Nodes in an order drawn from `seed`. Each takes as many layers as it can hold, at the position
// where the sorted rates of the covered layers are smallest.
Placement PetalsPlacement(const FlowProblem& problem, uint64_t seed);

// For each kind that can hold the model alone, one chain of its nodes at the kind's own threshold.
// Other kinds stay unused. None if no kind can hold the model.
std::optional<Placement> SeparatePipelines(const FlowProblem& problem);

}  // namespace millrace::plan
