// Why a plan carries what it carries: what binds it, how busy each node is, and what one more node
// of each kind would add.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/plan/inputs.h"
#include "base/clock.h"
#include "base/json.h"
#include "core/plan.h"

namespace millrace::apps {

struct ExplainOptions {
  const Clock* clock = nullptr;
  double seconds_per_kind = 2;  // of search with one node more
  std::function<void(const std::string& kind)> progress;
};

struct Explanation {
  struct Binding {  // of the minimum cut
    std::string what;
    double tokens_per_s = 0;
  };
  struct NodeUse {
    std::string node;
    double tokens_per_s = 0, capacity = 0;
    bool bottleneck = false;  // works at its capacity
  };
  struct OneMore {
    std::string kind;
    double tokens_per_s = 0;  // of the best plan found with it
    double added = 0;
  };
  double max_flow = 0;  // of the plan's placement, which the plan's own flow may be below
  std::vector<Binding> cut;
  std::vector<NodeUse> nodes;  // the busiest first
  std::vector<OneMore> one_more;
};

// REQUIRES: a plan that CheckPlan finds sound.
Result<Explanation> ExplainPlan(const PlanInputs& inputs, const Plan& plan,
                                const ExplainOptions& options);

std::string ExplanationText(const Explanation& explanation, const Plan& plan);
Json ExplanationJson(const Explanation& explanation);

}  // namespace millrace::apps
