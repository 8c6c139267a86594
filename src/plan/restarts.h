// The planner's local search as a series of restarts, and the constructions it begins from. Works
// on the portfolio of one call, on its thread.
#pragma once

#include "plan/portfolio.h"

namespace millrace::plan {

// The best single machine, chains at the threshold, Swarm, Petals, separate pipelines.
void TryConstructions(Portfolio& portfolio);

// At most `restarts` annealing restarts, until the budget in iterations is used, `seconds` have
// passed, or the incumbent is proved. Restarts differ in their seed, start and temperature.
void RunRestarts(Portfolio& portfolio, int restarts, std::optional<double> seconds);

}  // namespace millrace::plan
