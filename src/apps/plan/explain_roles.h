// Explains a plan with roles: what bounds each role, how busy each machine is, what one more
// machine of each kind would add, and to which role. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/plan/inputs.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "core/plan.h"

namespace millrace::apps {

struct RoleExplainOptions {
  const Clock* clock = nullptr;
  double seconds_per_kind = 2;  // search time with one more node
  std::function<void(const std::string& kind)> progress;
};

struct RoleExplanation {
  struct Role {
    StageRole role = StageRole::kBoth;
    int nodes = 0;
    double requests_per_s = 0;  // that it keeps up alone
    double busiest = 0;         // share of the time that a stage has, at the plan's rate
    bool bottleneck = false;
  };
  struct NodeUse {
    std::string node;
    std::string roles;  // of its stages: "prefill", "prefill + decode"
    double busy = 0;    // share of its time, of all its stages together
  };
  struct OneMore {
    std::string kind;
    std::string roles;  // of the added node; a new division may move others too
    double requests_per_s = 0, added = 0;
  };
  double requests_per_s = 0;
  bool limited = false;  // within limits on latency; else there are none
  std::string limit;     // what bounds it
  std::vector<Role> roles;
  std::vector<NodeUse> nodes;  // the busiest first
  std::vector<OneMore> one_more;
};

// REQUIRES: inputs.goodput, and a plan that CheckPlan accepts. Where a node has several stages,
// each keeps its share of the node (plan/roles/node_parts.h).
RoleExplanation ExplainRoles(const PlanInputs& inputs, const Plan& plan,
                             const RoleExplainOptions& options);

std::string RoleExplanationText(const RoleExplanation& explanation, const Plan& plan,
                                const ClusterSpec& cluster);
Json RoleExplanationJson(const RoleExplanation& explanation);

}  // namespace millrace::apps
