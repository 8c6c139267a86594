#include "cluster/control/layout/route_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace millrace::cluster {
namespace {

constexpr double kDerivedFlow = 1;       // tokens/s; equal for all chains
constexpr double kFlowTolerance = 1e-3;  // relative; files that people write are rounded

const StagePlan& StageOf(const Plan& plan, int stage) {
  return plan.stages[static_cast<size_t>(stage)];
}

bool Exists(const Plan& plan, const std::optional<int>& stage) {
  return !stage || (*stage >= 0 && *stage < std::ssize(plan.stages));
}

// How many layers the edge's next stage runs.
Result<int> LayersAlong(const Plan& plan, size_t index) {
  const PlanEdge& edge = plan.edges[index];
  if (!Exists(plan, edge.from) || !Exists(plan, edge.to) || (!edge.from && !edge.to)) {
    return InvalidArgument(
        fmt::format("edge {} of the plan names a stage that does not exist", index));
  }
  const int at = edge.from ? StageOf(plan, *edge.from).layers.end : 0;
  const LayerRange next =
      edge.to ? StageOf(plan, *edge.to).layers : LayerRange{plan.num_layers, plan.num_layers};
  const bool ends_well = edge.to ? next.end > at : at == plan.num_layers;
  if (next.begin > at || !ends_well || (!plan.partial_inference && next.begin != at)) {
    return InvalidArgument(fmt::format("edge {} of the plan leads from layer {} into [{}, {})",
                                       index, at, next.begin, next.end));
  }
  return next.end - at;
}

// Consecutive stages of one role that cover the model, chain after chain.
std::vector<std::vector<int>> ChainsOf(const Plan& plan, StageRole role) {
  std::vector<std::vector<int>> chains;
  std::vector<int> chain;
  int at = 0;
  for (int i = 0; i < std::ssize(plan.stages); ++i) {
    const StagePlan& stage = StageOf(plan, i);
    if (stage.role != role || stage.layers.begin > at || stage.layers.end <= at) continue;
    chain.push_back(i);
    at = stage.layers.end;
    if (at < plan.num_layers) continue;
    chains.push_back(std::exchange(chain, {}));
    at = 0;
  }
  return chains;
}

void AddChain(Plan& plan, const std::vector<int>& chain, EdgePhase phase) {
  std::optional<int> from;
  for (const int stage : chain) {
    plan.edges.push_back({from, stage, kDerivedFlow, phase});
    from = stage;
  }
  plan.edges.push_back({from, std::nullopt, kDerivedFlow, phase});
}

bool Has(const Plan& plan, EdgePhase phase) {
  return std::ranges::any_of(plan.edges, [phase](const PlanEdge& edge) {
    return edge.phase == phase && edge.tokens_per_s > 0;
  });
}

bool Does(StageRole role, EdgePhase phase) {
  if (role == StageRole::kBoth) return true;
  return phase == (role == StageRole::kPrefill ? EdgePhase::kPrefill : EdgePhase::kDecode);
}

// What flows into a stage must flow out of it, in each phase.
Status CheckFlows(const Plan& plan) {
  if (!(plan.tokens_per_s > 0)) return OkStatus();  // the plan states no flow
  for (const EdgePhase phase : {EdgePhase::kBoth, EdgePhase::kPrefill, EdgePhase::kDecode}) {
    std::vector<double> in(plan.stages.size(), 0), out(plan.stages.size(), 0);
    for (const PlanEdge& edge : plan.edges) {
      if (edge.phase != phase) continue;
      if (edge.to) in[static_cast<size_t>(*edge.to)] += edge.tokens_per_s;
      if (edge.from) out[static_cast<size_t>(*edge.from)] += edge.tokens_per_s;
    }
    for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
      if (std::abs(in[stage] - out[stage]) <= kFlowTolerance * std::max(in[stage], out[stage])) {
        continue;
      }
      return InvalidArgument(fmt::format(
          "stage {} of the plan receives {:.6g} tokens/s and sends {:.6g} in the same phase; make "
          "them equal, or leave out `flow` and `bound` for equal shares",
          stage, in[stage], out[stage]));
    }
  }
  return OkStatus();
}

std::string_view NameOf(StageRole role) {
  return role == StageRole::kBoth ? "both" : role == StageRole::kPrefill ? "prefill" : "decode";
}

Status CheckRoleOf(const Plan& plan, size_t index) {
  const PlanEdge& edge = plan.edges[index];
  if (!Exists(plan, edge.from) || !Exists(plan, edge.to)) {
    return InvalidArgument(
        fmt::format("edge {} of the plan names a stage that does not exist", index));
  }
  const bool hands_over = edge.phase == EdgePhase::kHandOver;
  const auto fits = [&](const std::optional<int>& stage, EdgePhase phase) {
    return !stage || Does(StageOf(plan, *stage).role, hands_over ? phase : edge.phase);
  };
  if (!fits(edge.from, EdgePhase::kPrefill) || !fits(edge.to, EdgePhase::kDecode)) {
    const int stage = fits(edge.from, EdgePhase::kPrefill) ? *edge.to : *edge.from;
    return InvalidArgument(
        fmt::format("edge {} of the plan carries what stage {} with the role {} does not do", index,
                    stage, NameOf(StageOf(plan, stage).role)));
  }
  return OkStatus();
}

// Each layer of a prefill stage needs a decode stage to which its KV may go, unless the stage also
// decodes.
Status CheckHandOvers(const Plan& plan) {
  const std::set<std::pair<int, int>> pairs = HandOversOf(plan);
  if (pairs.empty()) return OkStatus();
  for (const PlanEdge& edge : plan.edges) {
    if (edge.phase != EdgePhase::kPrefill || !edge.to || !(edge.tokens_per_s > 0)) continue;
    const bool decodes = std::ranges::any_of(plan.edges, [&](const PlanEdge& other) {
      return other.phase == EdgePhase::kDecode && other.to == edge.to && other.tokens_per_s > 0;
    });
    if (decodes) continue;
    const LayerRange layers = StageOf(plan, *edge.to).layers;
    for (int layer = layers.begin; layer < layers.end; ++layer) {
      const bool covered = std::ranges::any_of(pairs, [&](const std::pair<int, int>& pair) {
        const LayerRange there = StageOf(plan, pair.second).layers;
        return pair.first == *edge.to && there.begin <= layer && layer < there.end;
      });
      if (covered) continue;
      return InvalidArgument(
          fmt::format("stage {} of the plan does prefill, and no hand-over edge leads from it to a "
                      "stage with its layer {}",
                      *edge.to, layer));
    }
  }
  return OkStatus();
}

}  // namespace

Result<RouteGraph> RouteGraph::Create(const Plan& plan, EdgePhase phase) {
  RouteGraph graph;
  graph.exits_.resize(plan.stages.size() + 1);
  for (size_t e = 0; e < plan.edges.size(); ++e) {
    const PlanEdge& edge = plan.edges[e];
    if (edge.phase != phase || !(edge.tokens_per_s > 0)) continue;
    MR_ASSIGN_OR_RETURN(const int layers, LayersAlong(plan, e));
    const size_t from = edge.from ? static_cast<size_t>(*edge.from) : plan.stages.size();
    if (std::ranges::find(graph.exits_[from], edge.to, &Exit::to) != graph.exits_[from].end()) {
      return InvalidArgument(fmt::format("edge {} of the plan is there twice", e));
    }
    graph.exits_[from].push_back({edge.to, layers, edge.tokens_per_s});
  }
  // The last layer increases along every edge.
  graph.order_.resize(plan.stages.size());
  std::iota(graph.order_.begin(), graph.order_.end(), 0);
  std::ranges::stable_sort(graph.order_, std::ranges::greater(),
                           [&](int stage) { return StageOf(plan, stage).layers.end; });
  if (Has(plan, phase) && graph.FewestDown([](int) { return false; }).empty()) {
    return InvalidArgument("no route of the plan covers all layers");
  }
  graph.FindChains(plan);
  return graph;
}

void RouteGraph::FindChains(const Plan& plan) {
  std::vector<bool> taken(plan.stages.size(), false);
  for (const Exit& entry : exits_.back()) {
    Route& route = chains_.emplace_back();
    const Exit* exit = &entry;
    for (int at = 0; exit->to;) {
      const auto stage = static_cast<size_t>(*exit->to);
      if (taken[stage] || exits_[stage].size() != 1) return chains_.clear();
      taken[stage] = true;
      route.push_back({*exit->to, {at, at + exit->layers}});
      at += exit->layers;
      exit = &exits_[stage].front();
    }
  }
}

bool RouteGraph::Contains(const Route& route) const {
  std::optional<int> at;
  for (const Hop& hop : route) {
    const std::vector<Exit>& exits = ExitsOf(at);
    const bool leads = std::ranges::any_of(exits, [&](const Exit& exit) {
      return exit.to == hop.stage && exit.layers == hop.layers.size();
    });
    if (!leads) return false;
    at = hop.stage;
  }
  return at && std::ranges::any_of(ExitsOf(at), [](const Exit& exit) { return !exit.to; });
}

bool RouteGraph::Leads(int from, int to) const {
  std::vector<bool> leads(order_.size(), false);
  for (const int stage : order_) {  // those after it come first
    leads[static_cast<size_t>(stage)] = std::ranges::any_of(ExitsOf(stage), [&](const Exit& exit) {
      return exit.to == to || (exit.to && leads[static_cast<size_t>(*exit.to)]);
    });
  }
  return leads[static_cast<size_t>(from)];
}

Route RouteGraph::FewestDown(const std::function<bool(int)>& down) const {
  // By stage, from the end of the routes: the fewest stages down from here on, and the way.
  std::vector<std::optional<int>> fewest(order_.size());
  std::vector<const Exit*> way(order_.size());
  const auto beyond = [&](const Exit& exit) {
    return exit.to ? fewest[static_cast<size_t>(*exit.to)] : std::optional(0);
  };
  const auto best_of = [&](const std::vector<Exit>& exits) {
    const Exit* best = nullptr;
    for (const Exit& exit : exits) {
      if (beyond(exit) && (best == nullptr || *beyond(exit) < *beyond(*best))) best = &exit;
    }
    return best;
  };
  for (const int stage : order_) {
    const auto s = static_cast<size_t>(stage);
    way[s] = best_of(exits_[s]);
    if (way[s] != nullptr) fewest[s] = *beyond(*way[s]) + (down(stage) ? 1 : 0);
  }
  Route route;
  const Exit* exit = exits_.empty() ? nullptr : best_of(exits_.back());
  for (int at = 0; exit != nullptr && exit->to; exit = way[static_cast<size_t>(*exit->to)]) {
    route.push_back({*exit->to, {at, at + exit->layers}});
    at += exit->layers;
  }
  return route;
}

void DeriveEdges(Plan& plan) {
  const bool roles = std::ranges::any_of(
      plan.stages, [](const StagePlan& stage) { return stage.role != StageRole::kBoth; });
  const bool phases = std::ranges::any_of(
      plan.edges, [](const PlanEdge& edge) { return edge.phase != EdgePhase::kBoth; });
  if (!roles || phases) return;
  plan.edges.clear();
  plan.tokens_per_s = plan.tokens_per_s_bound = 0;
  const auto prefills = ChainsOf(plan, StageRole::kPrefill);
  for (const auto& chain : prefills) AddChain(plan, chain, EdgePhase::kPrefill);
  for (const auto& chain : ChainsOf(plan, StageRole::kDecode)) {
    AddChain(plan, chain, EdgePhase::kDecode);
  }
  const EdgePhase rest = prefills.empty() ? EdgePhase::kBoth : EdgePhase::kDecode;
  for (const auto& chain : ChainsOf(plan, StageRole::kBoth)) AddChain(plan, chain, rest);
}

Status CheckPhases(const Plan& plan) {
  const bool prefills = Has(plan, EdgePhase::kPrefill), decodes = Has(plan, EdgePhase::kDecode);
  for (size_t e = 0; e < plan.edges.size(); ++e) MR_RETURN_IF_ERROR(CheckRoleOf(plan, e));
  MR_RETURN_IF_ERROR(CheckFlows(plan));
  if (prefills && !decodes) {
    return InvalidArgument("the plan has prefill stages but no stages that decode");
  }
  if (decodes && !prefills && !Has(plan, EdgePhase::kBoth)) {
    return InvalidArgument("the plan has decode stages but no stages for prefill");
  }
  if (!decodes && !Has(plan, EdgePhase::kBoth)) {
    return InvalidArgument("no route of the plan covers all layers");
  }
  return CheckHandOvers(plan);
}

std::vector<int> GroupsOf(const Plan& plan) {
  std::vector<int> group(plan.stages.size());
  std::iota(group.begin(), group.end(), 0);
  const auto join = [&](int a, int b) {
    const int first = group[static_cast<size_t>(a)], second = group[static_cast<size_t>(b)];
    std::ranges::replace(group, std::max(first, second), std::min(first, second));
  };
  const bool kv_goes_anywhere = HandOversOf(plan).empty() && Has(plan, EdgePhase::kPrefill);
  std::optional<int> apart;  // a stage with prefill or decode edges
  for (const PlanEdge& edge : plan.edges) {
    if (edge.from && edge.to) join(*edge.from, *edge.to);
    const bool is_apart = edge.phase == EdgePhase::kPrefill || edge.phase == EdgePhase::kDecode;
    if (!edge.to || !is_apart || !kv_goes_anywhere) continue;
    if (!apart) apart = *edge.to;
    join(*apart, *edge.to);
  }
  for (int a = 0; a < std::ssize(plan.stages); ++a) {
    for (const NodeIndex node : StageOf(plan, a).nodes) {
      for (int b = 0; b < a; ++b) {
        if (std::ranges::count(StageOf(plan, b).nodes, node) > 0) join(a, b);
      }
    }
  }
  return group;
}

std::set<std::pair<int, int>> HandOversOf(const Plan& plan) {
  std::set<std::pair<int, int>> pairs;
  for (const PlanEdge& edge : plan.edges) {
    if (edge.phase == EdgePhase::kHandOver && edge.from && edge.to) {
      pairs.emplace(*edge.from, *edge.to);
    }
  }
  return pairs;
}

}  // namespace millrace::cluster
