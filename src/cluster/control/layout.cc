#include "cluster/control/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {
namespace {

std::string LayersText(LayerRange layers) {
  if (layers.size() == 1) return fmt::format("Layer {}", layers.begin);
  return fmt::format("Layers {}-{}", layers.begin, layers.end - 1);
}

// Consecutive stages of one role that cover the model, chain after chain.
std::vector<PlannedPipeline> ChainsOf(const Plan& plan, StageRole role) {
  std::vector<PlannedPipeline> pipelines;
  Route route;
  int at = 0;
  for (int i = 0; i < std::ssize(plan.stages); ++i) {
    const StagePlan& stage = plan.stages[static_cast<size_t>(i)];
    if (stage.role != role || stage.layers.begin > at || stage.layers.end <= at) continue;
    route.push_back({i, {at, stage.layers.end}});
    at = stage.layers.end;
    if (at < plan.num_layers) continue;
    pipelines.push_back({std::move(route), role});
    route.clear();
    at = 0;
  }
  return pipelines;
}

// The only successor of a stage along the edges. nullopt: it has none, or several.
std::optional<int> OnlySuccessor(const Plan& plan, int stage) {
  std::optional<int> only;
  for (const PlanEdge& edge : plan.edges) {
    if (edge.from != stage || !(edge.tokens_per_s > 0)) continue;
    if (only || !edge.to) return std::nullopt;
    only = edge.to;
  }
  return only;
}

// The route along the edges from each first stage. Empty if the plan branches.
std::vector<Route> ChainsByEdges(const Plan& plan) {
  std::vector<Route> chains;
  std::set<int> taken;
  for (const PlanEdge& first : plan.edges) {
    if (first.from || !(first.tokens_per_s > 0)) continue;
    Route& route = chains.emplace_back();
    std::optional<int> stage = first.to;
    int at = 0;
    while (at < plan.num_layers) {
      if (!stage || !taken.insert(*stage).second) return {};
      const LayerRange layers = plan.stages[static_cast<size_t>(*stage)].layers;
      if (layers.begin > at || layers.end <= at) return {};
      route.push_back({*stage, {at, layers.end}});
      at = layers.end;
      stage = OnlySuccessor(plan, *stage);
    }
  }
  return chains;
}

// Why the stage is not up, as a sentence.
std::string WhyDown(const LayoutStage& stage, int num_layers) {
  const bool whole = stage.plan.layers.size() == num_layers;
  const std::string what = whole ? "The model's layers" : LayersText(stage.plan.layers);
  const char* verb = stage.plan.layers.size() == 1 && !whole ? "is" : "are";
  if (stage.closing) return fmt::format("{} {} on a worker that is leaving.", what, verb);
  if (!stage.FullyAssigned()) {
    const auto missing = std::ranges::count_if(
        stage.ranks, [](const Slot& slot) { return !slot.worker.has_value(); });
    return stage.ranks.size() == 1 ? fmt::format("{} {} not on any worker.", what, verb)
                                   : fmt::format("{} {} missing {} of {} workers.", what, verb,
                                                 missing, stage.ranks.size());
  }
  int64_t done = 0, total = 0;
  for (const Slot& slot : stage.ranks) {
    done += slot.loaded ? slot.bytes_total : slot.bytes_done;
    total += slot.bytes_total;
  }
  if (total == 0) return fmt::format("{} {} being loaded.", what, verb);
  return fmt::format("{} {} being loaded: {} %.", what, verb, 100 * done / total);
}

std::string LowerFirst(std::string sentence) {
  sentence.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(sentence.front())));
  return sentence;
}

bool IsDown(const std::vector<LayoutStage>& stages, const Hop& hop) {
  return !stages[static_cast<size_t>(hop.stage)].Up();
}

const LayoutStage* FirstDown(const std::vector<LayoutStage>& stages, const Route& route) {
  const auto down =
      std::ranges::find_if(route, [&](const Hop& hop) { return IsDown(stages, hop); });
  return down == route.end() ? nullptr : &stages[static_cast<size_t>(down->stage)];
}

// REQUIRES: some pipeline serves the phase (CheckRoles).
Route LeastDownPipeline(const Layout& layout, Phase phase) {
  const PlannedPipeline* best = nullptr;
  std::ptrdiff_t least = 0;
  for (const PlannedPipeline& planned : layout.pipelines) {
    if (!Serves(layout, planned, phase)) continue;
    const auto down = std::ranges::count_if(
        planned.route, [&](const Hop& hop) { return IsDown(layout.stages, hop); });
    if (best != nullptr && down >= least) continue;
    best = &planned;
    least = down;
  }
  return best == nullptr ? Route{} : best->route;
}

// The route with the fewest stages down, for a plan that branches. The last layer increases along
// every edge (Router::Create checks this), so sorting by it visits each stage after all of its
// predecessors. The layer ranges of the hops are left out.
Route LeastDownRoute(const Layout& layout) {
  struct Reached {
    int down = 0;
    std::optional<int> from;  // nullopt: the first stage of the route
  };
  const std::vector<LayoutStage>& stages = layout.stages;
  std::vector<std::optional<Reached>> reached(stages.size());
  std::vector<int> order(stages.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {},
                           [&](int i) { return stages[static_cast<size_t>(i)].plan.layers.end; });
  std::optional<int> last;
  for (const int stage : order) {
    auto& best = reached[static_cast<size_t>(stage)];
    const int down = stages[static_cast<size_t>(stage)].Up() ? 0 : 1;
    for (const PlanEdge& edge : layout.plan.edges) {
      if (edge.to != stage || !(edge.tokens_per_s > 0)) continue;
      const auto before = edge.from ? reached[static_cast<size_t>(*edge.from)] : Reached{};
      if (!before || (best && best->down <= before->down + down)) continue;
      best = Reached{before->down + down, edge.from};
    }
    const bool ends = std::ranges::any_of(layout.plan.edges, [&](const PlanEdge& edge) {
      return edge.from == stage && !edge.to && edge.tokens_per_s > 0;
    });
    if (!best || !ends) continue;
    if (!last || best->down < reached[static_cast<size_t>(*last)]->down) last = stage;
  }
  Route route;
  for (std::optional<int> at = last; at; at = reached[static_cast<size_t>(*at)]->from) {
    route.push_back({*at, stages[static_cast<size_t>(*at)].plan.layers});
  }
  std::ranges::reverse(route);
  return route;
}

// Each phase of a request needs a pipeline that serves it.
Status CheckRoles(const std::vector<PlannedPipeline>& pipelines) {
  if (pipelines.empty()) return OkStatus();  // every stage serves both phases
  const auto has = [&](StageRole role) {
    return std::ranges::find(pipelines, role, &PlannedPipeline::role) != pipelines.end();
  };
  if (has(StageRole::kBoth)) return OkStatus();
  if (!has(StageRole::kDecode)) {
    return InvalidArgument("the plan has prefill stages but no stages that decode");
  }
  if (!has(StageRole::kPrefill)) {
    return InvalidArgument("the plan has decode stages but no stages for prefill");
  }
  return OkStatus();
}

}  // namespace

bool HasSlot(const LayoutStage& stage, WorkerId worker) {
  return std::ranges::find(stage.ranks, worker, &Slot::worker) != stage.ranks.end();
}

bool HasSlot(const Layout& layout, WorkerId worker) {
  return std::ranges::any_of(layout.stages,
                             [&](const LayoutStage& stage) { return HasSlot(stage, worker); });
}

bool SameRoute(const Route& a, const Route& b) {
  return std::ranges::equal(
      a, b, [](const Hop& x, const Hop& y) { return x.stage == y.stage && x.layers == y.layers; });
}

bool LayoutStage::Up() const { return !closing && std::ranges::all_of(ranks, &Slot::loaded); }

bool LayoutStage::FullyAssigned() const {
  return std::ranges::all_of(ranks, [](const Slot& slot) { return slot.worker.has_value(); });
}

int64_t LayoutStage::KvTokenLayers() const {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Slot& slot : ranks) {
    const int64_t each = std::max<int64_t>(1, slot.facts.kv_bytes_per_token_layer);
    least = std::min(least, slot.facts.kv_bytes / each);
  }
  return least;
}

bool Layout::Up() const { return std::ranges::all_of(stages, &LayoutStage::Up); }

bool Layout::FullyAssigned() const {
  return std::ranges::all_of(stages, &LayoutStage::FullyAssigned);
}

bool PrefillApart(const Layout& layout) {
  return std::ranges::find(layout.pipelines, StageRole::kPrefill, &PlannedPipeline::role) !=
         layout.pipelines.end();
}

bool Serves(const Layout& layout, const PlannedPipeline& planned, Phase phase) {
  if (phase == Phase::kDecode || !PrefillApart(layout)) return planned.role != StageRole::kPrefill;
  return planned.role != StageRole::kDecode;
}

bool HasPipeline(const Layout& layout, Phase phase) {
  const Route best =
      layout.pipelines.empty() ? LeastDownRoute(layout) : LeastDownPipeline(layout, phase);
  return FirstDown(layout.stages, best) == nullptr;
}

std::optional<std::string> Layout::Missing() const {
  if (pipelines.empty()) {
    const LayoutStage* down = FirstDown(stages, LeastDownRoute(*this));
    return down == nullptr ? std::nullopt : std::optional(WhyDown(*down, plan.num_layers));
  }
  std::string missing;
  for (const auto& [phase, name] :
       {std::pair(Phase::kPrefill, "Prefill: "), std::pair(Phase::kDecode, "Decode: ")}) {
    const LayoutStage* down = FirstDown(stages, LeastDownPipeline(*this, phase));
    if (down == nullptr) continue;
    const std::string why = WhyDown(*down, plan.num_layers);
    if (!PrefillApart(*this)) return why;
    missing += (missing.empty() ? "" : " ") + (name + LowerFirst(why));
  }
  return missing.empty() ? std::nullopt : std::optional(missing);
}

std::optional<std::string> Layout::Degraded() const {
  if (Missing()) return std::nullopt;
  const auto down = std::ranges::find_if_not(stages, &LayoutStage::Up);
  return down == stages.end() ? std::nullopt : std::optional(WhyDown(*down, plan.num_layers));
}

Plan EvenPlan(const std::string& model, int num_layers, int stages, int tensor_parallel) {
  MR_CHECK(stages >= 1 && stages <= num_layers) << stages << " stages of " << num_layers;
  Plan plan;
  plan.model = model;
  plan.num_layers = num_layers;
  plan.tokens_per_s = plan.tokens_per_s_bound = 1;
  int begin = 0;
  for (int i = 0; i < stages; ++i) {
    const int size = num_layers / stages + (i < num_layers % stages ? 1 : 0);
    plan.stages.push_back({.tensor_parallel = tensor_parallel, .layers = {begin, begin + size}});
    plan.edges.push_back({i == 0 ? std::optional<int>() : i - 1, i, 1});
    begin += size;
  }
  plan.edges.push_back({stages - 1, std::nullopt, 1});
  return plan;
}

std::vector<PlannedPipeline> PlannedPipelinesOf(const Plan& plan, ReplicaShare replicas) {
  const bool apart = std::ranges::any_of(
      plan.stages, [](const StagePlan& stage) { return stage.role != StageRole::kBoth; });
  std::vector<PlannedPipeline> pipelines;
  if (!apart) {
    std::vector<Route> chains = ChainsByEdges(plan);
    if (chains.size() > 1 && replicas == ReplicaShare::kFlow) return {};
    for (Route& route : chains) pipelines.push_back({std::move(route), StageRole::kBoth});
    return pipelines;
  }
  for (StageRole role : {StageRole::kPrefill, StageRole::kDecode, StageRole::kBoth}) {
    std::ranges::move(ChainsOf(plan, role), std::back_inserter(pipelines));
  }
  return pipelines;
}

bool SharesStages(const Plan& plan, const Route& route) {
  return std::ranges::any_of(route, [&](const Hop& hop) {
    const auto edges = [&](std::optional<int> PlanEdge::*end) {
      return std::ranges::count(plan.edges, std::optional(hop.stage), end);
    };
    return edges(&PlanEdge::from) > 1 || edges(&PlanEdge::to) > 1;
  });
}

Result<Layout> MakeLayout(Plan plan, std::vector<std::string> node_names, ReplicaShare replicas) {
  Layout layout;
  std::vector<bool> covered(static_cast<size_t>(std::max(0, plan.num_layers)), false);
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    const int tp = stage.tensor_parallel;
    if (tp != 1 && tp != 2 && tp != 4 && tp != 8) {
      return InvalidArgument(
          fmt::format("stage {}: tensor parallelism must be 1, 2, 4 or 8, not {}", i, tp));
    }
    if (stage.layers.begin < 0 || stage.layers.end > plan.num_layers || stage.layers.size() < 1) {
      return InvalidArgument(fmt::format("stage {}: layers [{}, {}) are not within [0, {})", i,
                                         stage.layers.begin, stage.layers.end, plan.num_layers));
    }
    for (int l = stage.layers.begin; l < stage.layers.end; ++l)
      covered[static_cast<size_t>(l)] = true;
    layout.stages.push_back({stage, std::vector<Slot>(static_cast<size_t>(tp))});
  }
  const auto gap = std::ranges::find(covered, false);
  if (gap != covered.end() || covered.empty()) {
    return InvalidArgument(fmt::format("no stage holds layer {}", gap - covered.begin()));
  }
  layout.replicas = replicas;
  layout.pipelines = PlannedPipelinesOf(plan, replicas);
  MR_RETURN_IF_ERROR(CheckRoles(layout.pipelines));
  layout.plan = std::move(plan);
  layout.node_names = std::move(node_names);
  return layout;
}

}  // namespace millrace::cluster
