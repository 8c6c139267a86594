// ExplainPlacement: why a placement carries what it carries, for people: the cut that binds, where
// it binds most, and what one more node of each kind would add. Pure; one thread per call.
#pragma once

#include <string>
#include <vector>

#include "plan/flow_problem.h"
#include "plan/placement_flow.h"

namespace millrace::plan {

struct OneMore {
  std::string kind;         // as NodeLabel() names it
  double tokens_per_s = 0;  // found with one more of them: at least so much is possible
  double gain = 0;          // above the placement
};

struct Explanation {
  double tokens_per_s = 0;
  double bound = 0;  // no placement carries more
  std::vector<std::string>
      cut;                 // the saturated nodes and links, alike ones together, largest first
  std::string bottleneck;  // one line: compute or links, and where
  std::vector<OneMore> one_more;  // largest gain first
};

struct ExplainOptions {
  uint64_t seed = 1;
  int64_t iterations_per_kind = 300'000;  // of search with one node more; zero: not asked
};

// REQUIRES: a valid problem and placement.
Explanation ExplainPlacement(const FlowProblem& problem, const Placement& placement,
                             const ExplainOptions& options);

}  // namespace millrace::plan
