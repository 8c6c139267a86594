// The moves of the local search: where one or a few nodes could go instead. Owned by one search;
// one thread.
#pragma once

#include <vector>

#include "base/rng.h"
#include "plan/flow/incremental_flow.h"
#include "plan/flow/layer_cover.h"

namespace millrace::plan {

class MoveMaker {
 public:
  // REQUIRES: at least one node can hold a layer. `problem` outlives this.
  MoveMaker(const FlowProblem& problem, Rng& rng);

  // Proposes moves that change something. May be empty if this attempt found none.
  const std::vector<NodeMove>& Propose(const Placement& placement, const LayerCover& cover);

 private:
  void Propose(int node, LayerRange range, const Placement& placement);
  LayerRange AnyRange(int node);
  void Reposition(const Placement& placement, const LayerCover& cover);
  void Nudge(const Placement& placement);
  void Swap(const Placement& placement);
  void Attach(const Placement& placement);
  void ShiftBoundary(const Placement& placement);
  void Split(const Placement& placement);
  void Remove(const Placement& placement);
  int AnyNode() { return usable_[rng_.Between(0, static_cast<int64_t>(usable_.size()) - 1)]; }
  LayerRange Clamp(int node, int begin, int size) const;

  const FlowProblem& problem_;
  Rng& rng_;
  std::vector<int> usable_;  // nodes that can hold at least one layer
  std::vector<NodeMove> moves_;
};

}  // namespace millrace::plan
