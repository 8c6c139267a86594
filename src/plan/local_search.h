// Seeded simulated annealing over placements. Two searches share moves and schedule: one over the
// layer cover alone, exact for partial inference when no link binds; one over the incremental
// maximum flow with every link. Each run is a function of its arguments. One thread.
#pragma once

#include <cstdint>
#include <functional>

#include "plan/flow_problem.h"

namespace millrace::plan {

struct SearchBudget {
  uint64_t seed = 1;
  int64_t iterations = 1'000'000;     // proposals; the temperature falls over them
  double hot = 1;                     // the first temperature; lower: stay near the start
  double raise = 1.05;                // the flow that is aimed at, relative to the best so far
  std::function<bool()> out_of_time;  // asked now and then; may be empty
};

struct SearchResult {
  Placement placement;
  double tokens_per_s = 0;  // what the search believes; the caller evaluates it exactly
  int64_t iterations = 0;
};

// REQUIRES: links never bind (LinksAreSlack) and the problem allows partial inference.
// Seeks a placement whose least covered layer has more than `start` has; `goal` is an upper bound.
SearchResult SearchCover(const FlowProblem& problem, const Placement& start, double goal,
                         const SearchBudget& budget);

// With every link, with and without partial inference.
SearchResult SearchFlow(const FlowProblem& problem, const Placement& start, double goal,
                        const SearchBudget& budget);

}  // namespace millrace::plan
