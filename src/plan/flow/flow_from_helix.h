// Converts a capacity table of the Helix artifact to a FlowProblem. Pure; any thread.
#pragma once

#include "plan/flow/flow_problem.h"
#include "plan/flow/helix_capacity.h"

namespace millrace::plan {

FlowProblem FlowFromHelix(const HelixCapacity& capacity, bool partial_inference);

}  // namespace millrace::plan
