// PoolFlow: the stages of one role in one domain along their maximum flow, and the routes that
// requests take through them. Plain values; any thread.
#pragma once

#include <vector>

#include "plan/estimate/flow_goodput.h"

namespace millrace::plan {

struct PoolFlow {
  struct Stage {
    int node = 0, layers = 0;
    bool first = false, last = false;  // begins the model; ends it, so it computes the head
    double share = 0;                  // of the pool's requests
  };
  // Stages that follow each other, by index in `stages`. The flow is the sum of its routes.
  struct Route {
    std::vector<int> stages;
    double share = 0;      // of the pool's requests
    double latency_s = 0;  // of its links, from and to the coordinator
    double link_s_per_token = 0;
  };
  std::vector<Stage> stages;
  std::vector<Route> routes;
  std::vector<FlowEdge> edges;
  double tokens_per_s = 0;  // of the phase, at most
  double Share(const FlowEdge& edge) const { return edge.tokens_per_s / tokens_per_s; }
};

// The placement's maximum flow at the rates of `phase`. Links are those of `problem`.
PoolFlow FlowOfPool(const GoodputProblem& problem, const FlowProblem& phase,
                    const Placement& placement);

}  // namespace millrace::plan
