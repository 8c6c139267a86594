#include "plan/flow/check.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "plan/flow/check_rules.h"

namespace millrace::plan {
namespace {

const char* PhaseName(EdgePhase phase) {
  switch (phase) {
    case EdgePhase::kBoth: return "both";
    case EdgePhase::kPrefill: return "prefill";
    case EdgePhase::kHandOver: return "hand-over";
    case EdgePhase::kDecode: return "decode";
  }
  return "?";
}

const char* NameOf(StageRole role) {
  switch (role) {
    case StageRole::kBoth: return "both";
    case StageRole::kPrefill: return "prefill";
    case StageRole::kDecode: return "decode";
  }
  return "?";
}

}  // namespace

bool PlanChecker::CheckHeader() {
  if (const Status valid = ValidateFlowProblem(problem_); !valid.ok()) {
    Fail("the problem itself: {}", valid.message());
    return false;
  }
  if (plan_.num_layers != problem_.num_layers) {
    Fail("the plan is for {} layers and the model has {}", plan_.num_layers, problem_.num_layers);
    return false;
  }
  return true;
}

bool PlanChecker::CheckStages() {
  const size_t before = violations_.size();
  std::vector<std::vector<int>> on(problem_.num_nodes());
  for (size_t s = 0; s < plan_.stages.size(); ++s) {
    const StagePlan& stage = plan_.stages[s];
    if (stage.nodes.size() != 1) {
      Fail("stage {} names {} nodes; a flow plan gives each stage one", s, stage.nodes.size());
      continue;
    }
    const int node = stage.nodes.front();
    if (node < 0 || node >= problem_.num_nodes()) {
      Fail("stage {} is on node {}; the cluster has {}", s, node, problem_.num_nodes());
      continue;
    }
    on[node].push_back(static_cast<int>(s));
    const int room = static_cast<int>(problem_.nodes[node].tokens_per_s.size());
    if (stage.layers.begin < 0 || stage.layers.end > problem_.num_layers ||
        stage.layers.begin >= stage.layers.end) {
      Fail("stage {} holds layers [{}, {}) of a model of {}", s, stage.layers.begin,
           stage.layers.end, problem_.num_layers);
    } else if (stage.layers.size() > room) {
      Fail("node {} is given {} layers and its memory holds {}", problem_.nodes[node].name,
           stage.layers.size(), room);
    }
    if (stage.tensor_parallel < 1 || stage.tensor_parallel > problem_.nodes[node].devices) {
      Fail("stage {} is spread over {} devices and node {} has {}", s, stage.tensor_parallel,
           problem_.nodes[node].name, problem_.nodes[node].devices);
    }
  }
  if (violations_.size() != before) return false;
  for (int node = 0; node < problem_.num_nodes(); ++node) {
    if (on[node].size() > 1) CheckNodeTogether(node, on[node]);
  }
  return violations_.size() == before;
}

// Several stages divide a node's devices, or share its only one.
void PlanChecker::CheckNodeTogether(int node, const std::vector<int>& stages) {
  const FlowNode& spec = problem_.nodes[node];
  int devices = 0, layers = 0;
  for (const int s : stages) {
    devices += plan_.stages[s].tensor_parallel;
    layers += plan_.stages[s].layers.size();
  }
  const int room = std::max(static_cast<int>(spec.tokens_per_s.size()), spec.room_layers);
  if (layers > room) {
    Fail("the {} stages of node {} hold {} layers together and its memory holds {}", stages.size(),
         spec.name, layers, room);
  }
  if (spec.devices > 1 && devices > spec.devices) {
    Fail("the {} stages of node {} take {} devices and it has {}", stages.size(), spec.name,
         devices, spec.devices);
  }
  for (const int s : stages) {
    const StagePlan& stage = plan_.stages[s];
    if (spec.devices == 1 || static_cast<int64_t>(stage.layers.size()) * spec.devices <=
                                 static_cast<int64_t>(room) * stage.tensor_parallel) {
      continue;
    }
    Fail("stage {} holds {} layers on {} of the {} devices of node {}, which hold {} in all", s,
         stage.layers.size(), stage.tensor_parallel, spec.devices, spec.name, room);
  }
}

std::string PlanChecker::EdgeName(const PlanEdge& edge) const {
  const auto name = [](const std::optional<int>& s) {
    return s ? fmt::format("stage {}", *s) : std::string("coordinator");
  };
  const std::string ends = name(edge.from) + " -> " + name(edge.to);
  return edge.phase == EdgePhase::kBoth ? ends
                                        : fmt::format("{} ({})", ends, PhaseName(edge.phase));
}

void PlanChecker::CheckEdge(const PlanEdge& edge) {
  if (!std::isfinite(edge.tokens_per_s) || edge.tokens_per_s < 0) {
    Fail("edge {} carries {} tokens/s", EdgeName(edge), edge.tokens_per_s);
    return;
  }
  if (!edge.from && !edge.to) {
    Fail("an edge joins the coordinator to itself");
    return;
  }
  CheckPhase(edge);
  CheckLayers(edge);
}

// Edges without a phase are ignored if stages have roles and no edge has a phase.
void PlanChecker::CheckPhase(const PlanEdge& edge) {
  const bool phases = std::any_of(plan_.edges.begin(), plan_.edges.end(),
                                  [](const PlanEdge& e) { return e.phase != EdgePhase::kBoth; });
  if (!phases) return;
  const auto fits = [&](const std::optional<int>& stage, bool sends) {
    if (!stage) return edge.phase != EdgePhase::kHandOver;
    const StageRole role = plan_.stages[*stage].role;
    switch (edge.phase) {
      case EdgePhase::kBoth: return role == StageRole::kBoth;
      case EdgePhase::kPrefill: return Prefills(role);
      case EdgePhase::kHandOver: return sends ? Prefills(role) : Decodes(role);
      case EdgePhase::kDecode: return Decodes(role);
    }
    return false;
  };
  for (const auto& [end, sends] : {std::pair(edge.from, true), std::pair(edge.to, false)}) {
    if (fits(end, sends)) continue;
    if (!end) {
      Fail("edge {} hands KV over to or from the coordinator", EdgeName(edge));
    } else {
      Fail("edge {} meets stage {}, whose role is {}", EdgeName(edge), *end,
           NameOf(plan_.stages[*end].role));
    }
  }
}

void PlanChecker::CheckLayers(const PlanEdge& edge) {
  if (!edge.from && plan_.stages[*edge.to].layers.begin != 0) {
    Fail("requests enter at stage {}, which begins at layer {}", *edge.to,
         plan_.stages[*edge.to].layers.begin);
  }
  if (!edge.to && plan_.stages[*edge.from].layers.end != problem_.num_layers) {
    Fail("tokens return from stage {}, which ends at layer {} of {}", *edge.from,
         plan_.stages[*edge.from].layers.end, problem_.num_layers);
  }
  if (!edge.from || !edge.to) return;
  const LayerRange a = plan_.stages[*edge.from].layers, b = plan_.stages[*edge.to].layers;
  if (edge.phase != EdgePhase::kHandOver) {
    if (const int from = NodeOf(edge.from), to = NodeOf(edge.to); !OneClass(from, to)) {
      Fail(
          "edge {} moves activations from node {} to node {}, which are of different numeric "
          "classes",
          EdgeName(edge), problem_.nodes[from].name, problem_.nodes[to].name);
    }
    if (Adjoin(a, b, plan_.partial_inference)) return;
    Fail("edge {} joins layers [{}, {}) to [{}, {}), which do not follow", EdgeName(edge), a.begin,
         a.end, b.begin, b.end);
    return;
  }
  if (std::max(a.begin, b.begin) >= std::min(a.end, b.end)) {
    Fail("edge {} hands over the KV of layers [{}, {}) to a stage that holds [{}, {})",
         EdgeName(edge), a.begin, a.end, b.begin, b.end);
  }
  const int from = NodeOf(edge.from), to = NodeOf(edge.to);
  if (KvReaches(from, to)) return;
  Fail(
      "edge {} moves KV from node {} to node {}, which are in different groups of kv_affinity or "
      "numeric classes",
      EdgeName(edge), problem_.nodes[from].name, problem_.nodes[to].name);
}

bool PlanChecker::CheckEdges() {
  const int stages = static_cast<int>(plan_.stages.size());
  const auto exists = [&](const std::optional<int>& s) { return !s || (*s >= 0 && *s < stages); };
  std::vector<std::tuple<int, int, EdgePhase>> seen;
  bool sound = true;
  for (const PlanEdge& edge : plan_.edges) {
    if (!exists(edge.from) || !exists(edge.to)) {
      Fail("edge {} names a stage that does not exist", EdgeName(edge));
      sound = false;
      continue;
    }
    CheckEdge(edge);
    sound = sound && (edge.phase != EdgePhase::kHandOver || (edge.from && edge.to));
    seen.emplace_back(edge.from.value_or(stages), edge.to.value_or(stages), edge.phase);
  }
  std::sort(seen.begin(), seen.end());
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  if (twice != seen.end()) {
    Fail("edge {} -> {} is listed twice", std::get<0>(*twice), std::get<1>(*twice));
  }
  return sound;
}

// A layer is covered if a stage with flow runs it. Since flow is conserved over adjoining ranges,
// this covers every layer between entry and exit.
void PlanChecker::CheckCoverage() {
  for (int layer = 0; layer < problem_.num_layers; ++layer) {
    const bool held = std::any_of(
        plan_.stages.begin(), plan_.stages.end(),
        [layer](const StagePlan& s) { return s.layers.begin <= layer && layer < s.layers.end; });
    if (!held) Fail("no stage holds layer {}", layer);
  }
}

bool PlanChecker::OneClass(int a_node, int b_node) const {
  if (options_.numeric_classes.empty()) return true;
  const std::string& a = options_.numeric_classes[a_node];
  const std::string& b = options_.numeric_classes[b_node];
  return a.empty() || b.empty() || a == b;
}

bool PlanChecker::KvReaches(int from_node, int to_node) const {
  if (!OneClass(from_node, to_node)) return false;
  if (options_.kv_affinity.empty() || from_node == to_node) return true;
  return std::any_of(options_.kv_affinity.begin(), options_.kv_affinity.end(),
                     [&](const std::vector<NodeIndex>& group) {
                       return std::find(group.begin(), group.end(), from_node) != group.end() &&
                              std::find(group.begin(), group.end(), to_node) != group.end();
                     });
}

// Each layer's KV needs a stage of the other role within KV reach that holds the layer.
void PlanChecker::CheckPairs() {
  for (size_t s = 0; s < plan_.stages.size(); ++s) {
    const StagePlan& stage = plan_.stages[s];
    if (stage.role == StageRole::kBoth) continue;
    const bool prefills = stage.role == StageRole::kPrefill;
    for (int layer = stage.layers.begin; layer < stage.layers.end; ++layer) {
      const bool found =
          std::any_of(plan_.stages.begin(), plan_.stages.end(), [&](const StagePlan& other) {
            const int here = stage.nodes.front(), there = other.nodes.front();
            return (prefills ? Decodes(other.role) : Prefills(other.role)) &&
                   other.layers.begin <= layer && layer < other.layers.end &&
                   (prefills ? KvReaches(here, there) : KvReaches(there, here));
          });
      if (found) continue;
      Fail("stage {} is for {} only, and no stage for {} within KV reach holds its layer {}", s,
           NameOf(stage.role), prefills ? "decode" : "prefill", layer);
      break;
    }
  }
}

void PlanChecker::CheckUnused() {
  std::vector<int> used(problem_.num_nodes(), 0), unused(problem_.num_nodes(), 0);
  for (const StagePlan& stage : plan_.stages) used[stage.nodes.front()] = 1;
  for (const UnusedNode& node : plan_.unused) {
    if (node.node < 0 || node.node >= problem_.num_nodes()) {
      Fail("unused node {} is not in the cluster", node.node);
      continue;
    }
    if (used[node.node] + unused[node.node]++ > 0) {
      Fail("node {} is listed as unused and used, or as unused twice",
           problem_.nodes[node.node].name);
    }
    if (node.reason.empty()) {
      Fail("node {} is unused without a reason", problem_.nodes[node.node].name);
    }
  }
  for (int i = 0; i < problem_.num_nodes(); ++i) {
    if (used[i] + unused[i] == 0)
      Fail("node {} is neither used nor unused", problem_.nodes[i].name);
  }
}

std::vector<std::string> PlanChecker::Run() {
  if (!CheckHeader() || !CheckStages() || !CheckEdges()) return violations_;
  CheckConservation();
  CheckTime();
  CheckLinks();
  CheckCoverage();
  CheckPairs();
  CheckHandOvers();
  CheckBalance();
  CheckUnused();
  CheckValue();
  return violations_;
}

std::vector<std::string> CheckPlan(const FlowProblem& problem, const Plan& plan,
                                   const CheckOptions& options) {
  return PlanChecker(problem, plan, options).Run();
}

}  // namespace millrace::plan
