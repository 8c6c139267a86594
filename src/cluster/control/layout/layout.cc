#include "cluster/control/layout/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace millrace::cluster {
namespace {

// The subject of a sentence with its verbs: "Layers 4-7", "are", "are not on any worker".
struct Subject {
  std::string name;
  std::string_view is, has_no_worker;
};

Subject LayersOf(const LayoutStage& stage, int num_layers) {
  const LayerRange layers = stage.plan.layers;
  if (layers.size() == num_layers) return {"The model's layers", "are", "are not on any worker"};
  if (layers.size() == 1)
    return {fmt::format("Layer {}", layers.begin), "is", "is not on any worker"};
  return {fmt::format("Layers {}-{}", layers.begin, layers.end - 1), "are",
          "are not on any worker"};
}

// Why the stage is not up, as a sentence.
std::string WhyDown(const LayoutStage& stage, const Subject& subject) {
  const auto& [what, verb, has_no_worker] = subject;
  if (stage.closing) return fmt::format("{} {} on a worker that is leaving.", what, verb);
  if (!stage.FullyAssigned()) {
    const auto missing = std::ranges::count_if(
        stage.ranks, [](const Slot& slot) { return !slot.worker.has_value(); });
    return stage.ranks.size() == 1 ? fmt::format("{} {}.", what, has_no_worker)
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

Route LeastDown(const Layout& layout, const RouteGraph& graph) {
  return graph.FewestDown(
      [&](int stage) { return !layout.stages[static_cast<size_t>(stage)].Up(); });
}

std::ptrdiff_t CountDown(const Layout& layout, const Route& route) {
  return std::ranges::count_if(route, [&](const Hop& hop) { return IsDown(layout.stages, hop); });
}

// The route with the fewest stages down among those that lead to an answer.
Route LeastDownToAnswer(const Layout& layout) {
  Route decode = LeastDown(layout, layout.decode), both = LeastDown(layout, layout.both);
  if (both.empty()) return decode;
  if (decode.empty()) return both;
  return CountDown(layout, decode) <= CountDown(layout, both) ? decode : both;
}

bool OnOneNode(const StagePlan& a, const StagePlan& b) {
  return std::ranges::any_of(
      a.nodes, [&](NodeIndex node) { return std::ranges::find(b.nodes, node) != b.nodes.end(); });
}

// A node may have several stages, but each layer once, because one stage with the role `both`
// serves prompts and answers. A request passes it once, because a worker runs one part of a
// pipeline.
Status CheckNodes(const Plan& plan, const std::vector<const RouteGraph*>& graphs) {
  for (int a = 0; a < std::ssize(plan.stages); ++a) {
    for (int b = 0; b < std::ssize(plan.stages); ++b) {
      const StagePlan& first = plan.stages[static_cast<size_t>(a)];
      const StagePlan& second = plan.stages[static_cast<size_t>(b)];
      if (a == b || !OnOneNode(first, second)) continue;
      if (first.layers.Overlap(second.layers).size() > 0) {
        return InvalidArgument(fmt::format(
            "stages {} and {} hold some of the same layers on one node; make them one stage", a,
            b));
      }
      const bool passes_both =
          std::ranges::any_of(graphs, [&](const RouteGraph* graph) { return graph->Leads(a, b); });
      if (!passes_both) continue;
      return InvalidArgument(fmt::format(
          "stages {} and {} are on one node and a route leads through both; make them one stage", a,
          b));
    }
  }
  return OkStatus();
}

// Whether several edges lead to the stage or from it, or its node has another stage too.
bool IsShared(const Plan& plan, int stage) {
  const auto edges = [&](std::optional<int> PlanEdge::*end) {
    return std::ranges::count_if(plan.edges, [&](const PlanEdge& edge) {
      return edge.phase != EdgePhase::kHandOver && edge.tokens_per_s > 0 && edge.*end == stage;
    });
  };
  if (edges(&PlanEdge::from) > 1 || edges(&PlanEdge::to) > 1) return true;
  const std::vector<NodeIndex>& nodes = plan.stages[static_cast<size_t>(stage)].nodes;
  return !nodes.empty() && std::ranges::count_if(plan.stages, [&](const StagePlan& other) {
                             return OnOneNode(plan.stages[static_cast<size_t>(stage)], other);
                           }) > 1;
}

// Whether some route that leads to an answer has only stages for which `serves` is true.
template <typename Serves>
bool LeadsToAnswer(const Layout& layout, const Serves& serves) {
  const auto down = [&](int index) { return !serves(layout.stages[static_cast<size_t>(index)]); };
  return std::ranges::any_of(std::array{&layout.decode, &layout.both}, [&](const auto* graph) {
    const Route route = graph->FewestDown(down);
    return !route.empty() &&
           std::ranges::none_of(route, [&](const Hop& hop) { return down(hop.stage); });
  });
}

}  // namespace

Status CheckLayers(const Plan& plan, int num_layers) {
  if (plan.num_layers == num_layers) return OkStatus();
  return InvalidArgument(
      fmt::format("the plan is for {} layers, the model has {}", plan.num_layers, num_layers));
}

bool HasSlot(const LayoutStage& stage, WorkerId worker) {
  return std::ranges::find(stage.ranks, worker, &Slot::worker) != stage.ranks.end();
}

bool HasSlot(const Layout& layout, WorkerId worker) {
  return std::ranges::any_of(layout.stages,
                             [&](const LayoutStage& stage) { return HasSlot(stage, worker); });
}

bool LayoutStage::Up() const { return !closing && std::ranges::all_of(ranks, &Slot::loaded); }

std::optional<BitClass> LayoutStage::bits() const {
  const auto slot = std::ranges::find_if(ranks, [](const Slot& s) { return s.worker.has_value(); });
  return slot == ranks.end() ? std::nullopt : std::optional(slot->bits);
}

int LayoutStage::protocol() const {
  int protocol = kProtocolVersion;
  for (const Slot& slot : ranks) {
    if (slot.worker) protocol = std::min(protocol, slot.protocol);
  }
  return protocol;
}

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

const RouteGraph& Layout::GraphOf(StageRole role) const {
  return role == StageRole::kBoth ? both : role == StageRole::kPrefill ? prefill : decode;
}

bool CanServe(const Layout& layout, const WorkerNeed& need) {
  return LeadsToAnswer(layout, [&](const LayoutStage& stage) {
    return stage.Up() && stage.protocol() >= need.protocol &&
           (!need.bits || stage.bits() == need.bits);
  });
}

bool MaySpeak(const Layout& layout, int protocol) {
  return LeadsToAnswer(layout,
                       [&](const LayoutStage& stage) { return stage.protocol() >= protocol; });
}

std::optional<std::string> Layout::Missing() const {
  const LayoutStage* down = FirstDown(stages, LeastDownToAnswer(*this));
  if (down == nullptr) return std::nullopt;
  const std::string why = WhyDown(*down, LayersOf(*down, plan.num_layers));
  if (prefill.empty()) return why;
  const LayoutStage* before = FirstDown(stages, LeastDown(*this, prefill));
  const std::string decode_lacks = "Decode: " + LowerFirst(why);
  if (before == nullptr) return decode_lacks;
  return "Prefill: " + LowerFirst(WhyDown(*before, LayersOf(*before, plan.num_layers))) + " " +
         decode_lacks;
}

std::optional<std::string> Layout::Degraded() const {
  if (Missing()) return std::nullopt;
  const auto down = std::ranges::find_if_not(stages, &LayoutStage::Up);
  if (down == stages.end()) return std::nullopt;
  // Other stages hold the same layers, because requests can be served.
  const StageRole role = down->plan.role;
  return WhyDown(*down, {fmt::format("A {}stage with {}",
                                     role == StageRole::kBoth      ? ""
                                     : role == StageRole::kPrefill ? "prefill "
                                                                   : "decode ",
                                     LowerFirst(LayersOf(*down, plan.num_layers).name)),
                         "is", "has no worker"});
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

bool SharesWorkers(const Layout& layout, const Route& route) {
  return std::ranges::any_of(route, [&](const Hop& hop) {
    return layout.stages[static_cast<size_t>(hop.stage)].shares_workers;
  });
}

Result<Layout> MakeLayout(Plan plan, std::vector<std::string> node_names) {
  Layout layout;
  DeriveEdges(plan);
  layout.states_flow = plan.tokens_per_s > 0;
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
  MR_RETURN_IF_ERROR(CheckPhases(plan));
  MR_ASSIGN_OR_RETURN(layout.prefill, RouteGraph::Create(plan, EdgePhase::kPrefill));
  MR_ASSIGN_OR_RETURN(layout.decode, RouteGraph::Create(plan, EdgePhase::kDecode));
  MR_ASSIGN_OR_RETURN(layout.both, RouteGraph::Create(plan, EdgePhase::kBoth));
  for (const StageRole role : {StageRole::kPrefill, StageRole::kDecode, StageRole::kBoth}) {
    for (const Route& route : layout.GraphOf(role).chains()) {
      layout.pipelines.push_back({route, role});
    }
  }
  for (int i = 0; i < std::ssize(plan.stages); ++i) {
    layout.stages[static_cast<size_t>(i)].shares_workers = IsShared(plan, i);
  }
  MR_RETURN_IF_ERROR(CheckNodes(plan, {&layout.prefill, &layout.decode, &layout.both}));
  layout.groups = GroupsOf(plan);
  layout.plan = std::move(plan);
  layout.node_names = std::move(node_names);
  return layout;
}

}  // namespace millrace::cluster
