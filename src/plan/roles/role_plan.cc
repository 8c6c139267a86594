#include "plan/roles/role_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

namespace millrace::plan {
namespace {

// The pool's nodes, each after those that it follows: from every entry along the largest flows.
std::vector<int> InOrder(const PoolFlow& pool) {
  std::vector<int> order;
  const auto known = [&](int node) { return std::ranges::find(order, node) != order.end(); };
  for (const FlowEdge& entry : pool.edges) {
    if (entry.from || known(*entry.to)) continue;
    std::optional<int> at = entry.to;
    while (at && !known(*at)) {
      order.push_back(*at);
      const FlowEdge* next = nullptr;
      for (const FlowEdge& edge : pool.edges) {
        if (edge.from != at || (edge.to && known(*edge.to))) continue;
        if (next == nullptr || edge.tokens_per_s > next->tokens_per_s) next = &edge;
      }
      at = next == nullptr ? std::nullopt : next->to;
    }
  }
  for (const PoolFlow::Stage& stage : pool.stages) {
    if (!known(stage.node)) order.push_back(stage.node);
  }
  return order;
}

class RolePlanMaker {
 public:
  RolePlanMaker(const RoleProblem& problem, const RolePlacement& placement,
                const RoleEstimate& estimate)
      : problem_(problem),
        placement_(placement),
        estimate_(estimate),
        stage_(placement.layers.size()) {}

  Plan Make(double bound) {
    const GoodputProblem& p = *problem_.goodput;
    plan_.model = p.flow.model;
    plan_.cluster = p.flow.cluster;
    plan_.num_layers = p.flow.num_layers;
    plan_.partial_inference = HasBoth() && p.flow.partial_inference;
    double scale = std::numeric_limits<double>::max();
    for (const RoleUnit& unit : estimate_.units) {
      scale = std::min(scale, unit.capacity_requests_per_s / unit.estimate.requests_per_s);
    }
    for (const RoleUnit& unit : estimate_.units) {
      AddUnit(unit, std::max(1.0, scale) * unit.estimate.requests_per_s);
    }
    for (const PlanEdge& edge : plan_.edges) {
      if (!edge.from) plan_.tokens_per_s += edge.tokens_per_s;
    }
    plan_.tokens_per_s_bound = std::max(bound, plan_.tokens_per_s);
    AddUnused();
    return std::move(plan_);
  }

 private:
  bool HasBoth() const {
    return std::ranges::any_of(estimate_.units,
                               [](const RoleUnit& unit) { return unit.prefill.stages.empty(); });
  }

  void AddUnit(const RoleUnit& unit, double requests_per_s) {
    const GoodputProblem& p = *problem_.goodput;
    const double prompts = requests_per_s * p.prompt_tokens;
    const double outputs = requests_per_s * p.output_tokens;
    if (unit.prefill.stages.empty()) {
      AddPool(unit.decode, EdgePhase::kBoth, prompts + outputs);
      return;
    }
    AddPool(unit.prefill, EdgePhase::kPrefill, prompts);
    AddPool(unit.decode, EdgePhase::kDecode, outputs);
    for (const HandOver& move : unit.hand_overs) {
      plan_.edges.push_back({stage_[static_cast<size_t>(move.from)],
                             stage_[static_cast<size_t>(move.to)], move.share * prompts,
                             EdgePhase::kHandOver});
    }
  }

  void AddPool(const PoolFlow& pool, EdgePhase phase, double tokens_per_s) {
    for (const int node : InOrder(pool)) {
      const auto at = static_cast<size_t>(node);
      stage_[at] = static_cast<int>(plan_.stages.size());
      plan_.stages.push_back({.nodes = {node},
                              .tensor_parallel = problem_.goodput->flow.nodes[at].devices,
                              .layers = placement_.layers[at],
                              .role = placement_.roles[at]});
    }
    const auto stage_of = [&](const std::optional<int>& node) {
      return node ? stage_[static_cast<size_t>(*node)] : std::optional<int>();
    };
    for (const FlowEdge& edge : pool.edges) {
      plan_.edges.push_back(
          {stage_of(edge.from), stage_of(edge.to), pool.Share(edge) * tokens_per_s, phase});
    }
  }

  void AddUnused() {
    for (int i = 0; i < problem_.num_nodes(); ++i) {
      const auto at = static_cast<size_t>(i);
      if (stage_[at]) continue;
      plan_.unused.push_back(
          {i, problem_.goodput->flow.nodes[at].max_layers() == 0
                  ? "its memory cannot hold one layer"
                  : fmt::format("no place found where it raises the goodput of {:.4g} req/s, which "
                                "{} limits",
                                estimate_.requests_per_s, estimate_.limit)});
    }
  }

  const RoleProblem& problem_;
  const RolePlacement& placement_;
  const RoleEstimate& estimate_;
  std::vector<std::optional<int>> stage_;  // by node
  Plan plan_;
};

}  // namespace

Plan MakeRolePlan(const RoleProblem& problem, const RolePlacement& placement,
                  const RoleEstimate& estimate, double bound) {
  return RolePlanMaker(problem, placement, estimate).Make(bound);
}

}  // namespace millrace::plan
