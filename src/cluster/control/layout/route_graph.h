// RouteGraph: the routes that a plan's edges of one phase allow. This header also derives the edges
// of a plan whose stages have roles but whose edges have no phase, and checks that the phases of a
// plan fit together. Pure data and functions; values.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "core/plan.h"

namespace millrace::cluster {

class RouteGraph {
 public:
  // An edge that leaves a stage or the coordinator.
  struct Exit {
    std::optional<int> to;  // nullopt: the route ends
    int layers = 0;         // how many layers the next stage runs when entered by this edge
    double tokens_per_s = 0;
  };

  RouteGraph() = default;
  // Edges without flow are left out. kInvalidArgument: an edge does not fit the stages, or edges of
  // the phase exist and no route along them covers all layers.
  static Result<RouteGraph> Create(const Plan& plan, EdgePhase phase);

  // Whether the plan has no edges of this phase.
  bool empty() const { return exits_.empty() || exits_.back().empty(); }
  // Of a stage; of the coordinator, if `from` is unset.
  const std::vector<Exit>& ExitsOf(std::optional<int> from) const {
    return exits_[from ? static_cast<size_t>(*from) : exits_.size() - 1];
  }
  // Each stage after all stages that it can lead to.
  const std::vector<int>& order() const { return order_; }
  bool Contains(const Route& route) const;
  // Whether some way along the edges leads from one stage to the other.
  bool Leads(int from, int to) const;
  // The routes, if each stage has at most one predecessor and one successor. Empty: they branch.
  const std::vector<Route>& chains() const { return chains_; }
  // The route through the fewest stages for which `down` is true. Empty if the graph is empty.
  Route FewestDown(const std::function<bool(int stage)>& down) const;

 private:
  void FindChains(const Plan& plan);

  std::vector<std::vector<Exit>> exits_;  // by stage; the last are the coordinator's
  std::vector<int> order_;
  std::vector<Route> chains_;
};

// Gives the edges phases if the stages have roles and no edge has a phase. The stages of each role
// are then chained in their order, with the same flow for each chain, and the edges of the plan are
// ignored: prefill stages carry prompts, the others answers. Without prefill stages, those with the
// role `both` carry prompts and answers. The plan then states no flow (tokens_per_s is 0).
void DeriveEdges(Plan& plan);

// kInvalidArgument: an edge carries what one of its stages does not do, stated flows do not add up,
// one role lacks the other, or the KV of a layer has no way from a prefill stage to a decode stage.
Status CheckPhases(const Plan& plan);

// The stages by group: all workers of a group must be of one bit class, because activations or KV
// pass between them. Stages are in one group if they share an edge or a node. Stages for prefill
// and for decode all are, unless hand-over edges say which KV goes where. The value of a stage is
// the first stage of its group.
std::vector<int> GroupsOf(const Plan& plan);

// The pairs of stages that the plan's hand-over edges join. Empty: KV may go from any to any.
std::set<std::pair<int, int>> HandOversOf(const Plan& plan);

}  // namespace millrace::cluster
