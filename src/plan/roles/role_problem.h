// RoleProblem: a goodput problem whose nodes may be dedicated to one phase. It adds what a node
// carries in each phase alone, and which nodes may hand KV to each other. Plain values; any thread.
#pragma once

#include <vector>

#include "core/plan.h"
#include "plan/estimate/flow_goodput.h"
#include "plan/estimate/rounds_goodput.h"

namespace millrace::plan {

struct RoleProblem {
  const GoodputProblem* goodput = nullptr;  // not owned
  // T(k) of prompts alone, and of outputs alone with batches within the KV memory and the TPOT
  // limit. A stage runs all layers that it holds.
  FlowProblem prefill, decode;
  // For nodes that do both: `goodput` with tighter limits. Its estimates are means, and the limits
  // hold for nine requests in ten. Its flow problem is that of `goodput`.
  RoundsProblem both;
  std::vector<int> domain;  // by node: KV moves only between nodes of one domain
  int num_domains = 1;

  int num_nodes() const { return goodput->flow.num_nodes(); }
};

// What each node does and which layers it holds. An empty range: the node is unused.
struct RolePlacement {
  Placement layers;
  std::vector<StageRole> roles;  // by node

  friend bool operator==(const RolePlacement&, const RolePlacement&) = default;
};

// Prefill rate and decode rate with 1, 2, ... layers, in tokens per second, as NodeTokensPerSecond
// computes the rate of both. They fill FlowNode::prefill_tokens_per_s and decode_tokens_per_s.
void AddPhaseRates(GoodputProblem& problem);

// `problem` outlives the result.
RoleProblem RolesOf(const GoodputProblem& problem);

// The layers of the nodes with this role in this domain; the other ranges are empty.
Placement PoolOf(const RoleProblem& problem, const RolePlacement& placement, StageRole role,
                 int domain);

// No plan with or without roles carries more tokens per second, prompt and output together: every
// node divides its time between the phases at the rate of its best number of layers. Links are
// ignored.
double RoleBound(const GoodputProblem& problem);

}  // namespace millrace::plan
