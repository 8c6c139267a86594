// The planner's local search as a series of restarts, and the constructions it starts from. Works
// on the portfolio of one call, on its thread.
#pragma once

#include "plan/flow/portfolio.h"

namespace millrace::plan {

// Offers the best single machine, chains at the threshold, Swarm, Petals and separate pipelines.
void TryConstructions(Portfolio& portfolio);

// At most `restarts` annealing restarts, until the iterations are used up, `seconds` have passed,
// or the incumbent is proved optimal. Restarts differ in seed, start and temperature.
void RunRestarts(Portfolio& portfolio, int restarts, std::optional<double> seconds);

}  // namespace millrace::plan
