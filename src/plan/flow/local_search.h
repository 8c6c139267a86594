// Seeded simulated annealing over placements. Two searches share moves and schedule. One uses the
// layer cover alone, which is exact for partial inference if no link binds; the other uses the
// incremental maximum flow with every link. Each run is a function of its arguments. One thread.
#pragma once

#include <cstdint>
#include <functional>

#include "plan/flow/flow_problem.h"

namespace millrace::plan {

struct SearchBudget {
  uint64_t seed = 1;
  int64_t iterations = 1'000'000;     // number of proposals; the temperature falls over them
  double hot = 1;                     // the first temperature; a lower one stays near the start
  double raise = 1.05;                // the target flow relative to the best so far
  std::function<bool()> out_of_time;  // checked now and then; may be empty
};

struct SearchResult {
  Placement placement;
  double tokens_per_s = 0;  // the search's own estimate; the caller evaluates it exactly
  int64_t iterations = 0;
};

// Seeks a placement whose least covered layer exceeds that of `start`. `goal` is an upper bound.
// REQUIRES: links never bind (LinksAreSlack) and the problem allows partial inference.
SearchResult SearchCover(const FlowProblem& problem, const Placement& start, double goal,
                         const SearchBudget& budget);

// The same with every link, with or without partial inference.
SearchResult SearchFlow(const FlowProblem& problem, const Placement& start, double goal,
                        const SearchBudget& budget);

}  // namespace millrace::plan
