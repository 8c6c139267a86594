// Explains the throughput of a plan: the binding cut, the utilisation of each node, and the gain of
// one more node of each kind. Any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/plan/inputs.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "core/plan.h"

namespace millrace::apps {

struct ExplainOptions {
  const Clock* clock = nullptr;
  double seconds_per_kind = 2;  // search time with one more node
  std::function<void(const std::string& kind)> progress;
};

struct Explanation {
  struct Binding {  // an edge of the minimum cut
    std::string what;
    double tokens_per_s = 0;
  };
  struct NodeUse {
    std::string node;
    int stages = 1;
    double busy = 0;                        // share of its time, of all its stages together
    double tokens_per_s = 0, capacity = 0;  // of all its stages, each with its share of the node
    bool bottleneck = false;                // a stage runs at its capacity
  };
  struct OneMore {
    std::string kind;
    double tokens_per_s = 0;  // of the best plan found with one more node
    double added = 0;
  };
  double max_flow = 0;  // of the plan's placement; the plan's own flow may be lower
  std::vector<Binding> cut;
  std::vector<NodeUse> nodes;  // the busiest first
  std::vector<OneMore> one_more;
};

// REQUIRES: a plan that CheckPlan accepts. Where a node has several stages, each keeps its share of
// the node (plan/roles/node_parts.h).
Result<Explanation> ExplainPlan(const PlanInputs& inputs, const Plan& plan,
                                const ExplainOptions& options);

std::string ExplanationText(const Explanation& explanation, const Plan& plan);
Json ExplanationJson(const Explanation& explanation);

}  // namespace millrace::apps
