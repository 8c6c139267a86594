#include "cluster/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace millrace::cluster {
namespace {

std::string LayersText(LayerRange layers) {
  if (layers.size() == 1) return fmt::format("Layer {}", layers.begin);
  return fmt::format("Layers {}-{}", layers.begin, layers.end - 1);
}

// Consecutive stages of one role that cover the model, chain after chain.
std::vector<Way> ChainsOf(const Plan& plan, StageRole role) {
  std::vector<Way> ways;
  Route route;
  int at = 0;
  for (int i = 0; i < std::ssize(plan.stages); ++i) {
    const StagePlan& stage = plan.stages[static_cast<size_t>(i)];
    if (stage.role != role || stage.layers.begin > at || stage.layers.end <= at) continue;
    route.push_back({i, {at, stage.layers.end}});
    at = stage.layers.end;
    if (at < plan.num_layers) continue;
    ways.push_back({std::move(route), role});
    route.clear();
    at = 0;
  }
  return ways;
}

// The stages one after the other along the edges; empty when anything branches.
Route OnlyRoute(const Plan& plan) {
  Route route;
  int at = 0;
  std::optional<int> from;
  while (at < plan.num_layers) {
    std::optional<int> next;
    for (const PlanEdge& edge : plan.edges) {
      if (edge.from != from || !(edge.tokens_per_s > 0)) continue;
      if (next || !edge.to) return {};
      next = edge.to;
    }
    if (!next) return {};
    const LayerRange layers = plan.stages[static_cast<size_t>(*next)].layers;
    if (layers.begin > at || layers.end <= at) return {};
    route.push_back({*next, {at, layers.end}});
    at = layers.end;
    from = next;
  }
  return route;
}

}  // namespace

bool LayoutStage::Up() const { return std::ranges::all_of(ranks, &Slot::loaded); }

bool LayoutStage::Staffed() const {
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

std::optional<std::string> Layout::Missing() const {
  for (const LayoutStage& stage : stages) {
    if (stage.Up()) continue;
    const bool whole = stage.plan.layers.size() == plan.num_layers;
    const std::string what = whole ? "The model's layers" : LayersText(stage.plan.layers);
    const char* verb = stage.plan.layers.size() == 1 ? "is" : "are";
    if (!stage.Staffed()) {
      const auto missing = std::ranges::count_if(
          stage.ranks, [](const Slot& slot) { return !slot.worker.has_value(); });
      return stage.ranks.size() == 1 ? fmt::format("{} {} on no worker.", what, verb)
                                     : fmt::format("{} {} {} of {} workers short.", what, verb,
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
  return std::nullopt;
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

std::vector<Way> WaysOf(const Plan& plan) {
  const bool apart = std::ranges::any_of(
      plan.stages, [](const StagePlan& stage) { return stage.role != StageRole::kBoth; });
  if (!apart) {
    Route route = OnlyRoute(plan);
    if (route.empty()) return {};
    return {{std::move(route), StageRole::kBoth}};
  }
  std::vector<Way> ways;
  for (StageRole role : {StageRole::kPrefill, StageRole::kDecode, StageRole::kBoth}) {
    std::ranges::move(ChainsOf(plan, role), std::back_inserter(ways));
  }
  return ways;
}

Result<Layout> MakeLayout(Plan plan, std::vector<std::string> node_names) {
  Layout layout;
  std::vector<bool> covered(static_cast<size_t>(std::max(0, plan.num_layers)), false);
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    const int tp = stage.tensor_parallel;
    if (tp != 1 && tp != 2 && tp != 4 && tp != 8) {
      return InvalidArgument(
          fmt::format("stage {}: tensor parallelism is 1, 2, 4 or 8, got {}", i, tp));
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
  layout.ways = WaysOf(plan);
  layout.plan = std::move(plan);
  layout.node_names = std::move(node_names);
  return layout;
}

}  // namespace millrace::cluster
