#include "plan/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>

namespace millrace::plan {
namespace {

constexpr double kAugmentMin = 1e-9;  // tokens/s: smaller residual capacity is rounding

// Restates the rules independently: it uses nothing from the solvers.
class Checker {
 public:
  Checker(const FlowProblem& problem, const Plan& plan, const CheckOptions& options)
      : problem_(problem), plan_(plan), options_(options) {}

  std::vector<std::string> Run();

 private:
  template <typename... Args>
  void Fail(fmt::format_string<Args...> format, Args&&... args) {
    violations_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  bool CheckHeader();
  bool CheckStages();
  bool CheckEdges();
  void CheckFlows();
  void CheckCoverage();
  void CheckRoles();
  void CheckUnused();
  void CheckValue();
  void CheckEdge(const PlanEdge& edge);
  std::string EdgeName(const PlanEdge& edge) const;
  double StageRate(const StagePlan& stage) const {
    return problem_.nodes[stage.nodes.front()].tokens_per_s[stage.layers.size() - 1];
  }
  int NodeOf(const std::optional<int>& stage) const {
    return stage ? plan_.stages[*stage].nodes.front() : problem_.num_nodes();
  }
  double LinkRate(const std::optional<int>& from, const std::optional<int>& to) const {
    const int width = problem_.num_nodes() + 1;
    return problem_.link_tokens_per_s[NodeOf(from) * width + NodeOf(to)];
  }

  const FlowProblem& problem_;
  const Plan& plan_;
  const CheckOptions& options_;
  std::vector<std::string> violations_;
};

bool Adjoin(const LayerRange& before, const LayerRange& after, bool partial) {
  if (!partial) return before.end == after.begin;
  return after.begin <= before.end && before.end < after.end;
}

bool Checker::CheckHeader() {
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

bool Checker::CheckStages() {
  const size_t before = violations_.size();
  std::vector<int> holder(problem_.num_nodes(), 0);
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
    if (++holder[node] > 1) Fail("node {} holds two stages", problem_.nodes[node].name);
    if (stage.layers.begin < 0 || stage.layers.end > problem_.num_layers ||
        stage.layers.begin >= stage.layers.end) {
      Fail("stage {} holds layers [{}, {}) of a model of {}", s, stage.layers.begin,
           stage.layers.end, problem_.num_layers);
    } else if (stage.layers.size() > static_cast<int>(problem_.nodes[node].tokens_per_s.size())) {
      Fail("node {} is given {} layers and its memory holds {}", problem_.nodes[node].name,
           stage.layers.size(), problem_.nodes[node].tokens_per_s.size());
    }
  }
  return violations_.size() == before;
}

std::string Checker::EdgeName(const PlanEdge& edge) const {
  const auto name = [](const std::optional<int>& s) {
    return s ? fmt::format("stage {}", *s) : std::string("coordinator");
  };
  return name(edge.from) + " -> " + name(edge.to);
}

void Checker::CheckEdge(const PlanEdge& edge) {
  const std::string name = EdgeName(edge);
  if (!std::isfinite(edge.tokens_per_s) || edge.tokens_per_s < 0) {
    Fail("edge {} carries {} tokens/s", name, edge.tokens_per_s);
    return;
  }
  if (!edge.from && !edge.to) {
    Fail("an edge joins the coordinator to itself");
    return;
  }
  if (!edge.from && plan_.stages[*edge.to].layers.begin != 0) {
    Fail("requests enter at stage {}, which begins at layer {}", *edge.to,
         plan_.stages[*edge.to].layers.begin);
  }
  if (!edge.to && plan_.stages[*edge.from].layers.end != problem_.num_layers) {
    Fail("tokens return from stage {}, which ends at layer {} of {}", *edge.from,
         plan_.stages[*edge.from].layers.end, problem_.num_layers);
  }
  if (edge.from && edge.to) {
    const LayerRange a = plan_.stages[*edge.from].layers, b = plan_.stages[*edge.to].layers;
    if (!Adjoin(a, b, plan_.partial_inference)) {
      Fail("edge {} joins layers [{}, {}) to [{}, {}), which do not follow", name, a.begin, a.end,
           b.begin, b.end);
    }
  }
  const double link = LinkRate(edge.from, edge.to);
  if (edge.tokens_per_s > link + options_.tolerance_tokens_per_s) {
    Fail("edge {} carries {:.6g} tokens/s over a link of {:.6g}", name, edge.tokens_per_s, link);
  }
}

bool Checker::CheckEdges() {
  const int stages = static_cast<int>(plan_.stages.size());
  const auto exists = [&](const std::optional<int>& s) { return !s || (*s >= 0 && *s < stages); };
  std::vector<std::pair<int, int>> seen;
  bool sound = true;
  for (const PlanEdge& edge : plan_.edges) {
    if (!exists(edge.from) || !exists(edge.to)) {
      Fail("edge {} names a stage that does not exist", EdgeName(edge));
      sound = false;
      continue;
    }
    CheckEdge(edge);
    seen.emplace_back(edge.from.value_or(stages), edge.to.value_or(stages));
  }
  std::sort(seen.begin(), seen.end());
  const auto twice = std::adjacent_find(seen.begin(), seen.end());
  if (twice != seen.end()) Fail("edge {} -> {} is listed twice", twice->first, twice->second);
  return sound;
}

void Checker::CheckFlows() {
  const size_t stages = plan_.stages.size();
  std::vector<double> in(stages, 0), out(stages, 0);
  double entering = 0;
  for (const PlanEdge& edge : plan_.edges) {
    if (edge.from) out[*edge.from] += edge.tokens_per_s;
    if (edge.to) in[*edge.to] += edge.tokens_per_s;
    if (!edge.from) entering += edge.tokens_per_s;
  }
  for (size_t s = 0; s < stages; ++s) {
    const double rate = StageRate(plan_.stages[s]);
    if (std::abs(in[s] - out[s]) > options_.tolerance_tokens_per_s) {
      Fail("stage {} receives {:.6g} tokens/s and sends {:.6g}", s, in[s], out[s]);
    }
    if (in[s] > rate + options_.tolerance_tokens_per_s) {
      Fail("stage {} carries {:.6g} tokens/s and can compute {:.6g}", s, in[s], rate);
    }
    if (in[s] <= 0) Fail("stage {} carries nothing", s);
  }
  if (std::abs(entering - plan_.tokens_per_s) > options_.tolerance_tokens_per_s) {
    Fail("the plan claims {:.6g} tokens/s and its edges take in {:.6g}", plan_.tokens_per_s,
         entering);
  }
}

// A layer is covered if a stage with flow runs it. Since flow is conserved over adjoining ranges,
// this covers every layer between entry and exit.
void Checker::CheckCoverage() {
  for (int layer = 0; layer < problem_.num_layers; ++layer) {
    const bool held = std::any_of(
        plan_.stages.begin(), plan_.stages.end(),
        [layer](const StagePlan& s) { return s.layers.begin <= layer && layer < s.layers.end; });
    if (!held) Fail("no stage holds layer {}", layer);
  }
}

void Checker::CheckRoles() {
  const auto pairs = [&](const StagePlan& prefill, const StagePlan& decode) {
    if (options_.kv_affinity.empty()) return true;
    for (const auto& group : options_.kv_affinity) {
      const bool a = std::find(group.begin(), group.end(), prefill.nodes[0]) != group.end();
      const bool b = std::find(group.begin(), group.end(), decode.nodes[0]) != group.end();
      if (a && b) return true;
    }
    return false;
  };
  for (size_t s = 0; s < plan_.stages.size(); ++s) {
    const StagePlan& stage = plan_.stages[s];
    if (stage.role == StageRole::kBoth) continue;
    const StageRole wanted =
        stage.role == StageRole::kPrefill ? StageRole::kDecode : StageRole::kPrefill;
    // Each layer's KV needs a stage of the other role within KV reach that holds the layer.
    for (int layer = stage.layers.begin; layer < stage.layers.end; ++layer) {
      const bool found =
          std::any_of(plan_.stages.begin(), plan_.stages.end(), [&](const StagePlan& other) {
            return (other.role == wanted || other.role == StageRole::kBoth) &&
                   other.layers.begin <= layer && layer < other.layers.end && pairs(stage, other);
          });
      if (!found) {
        Fail("stage {} is for {} only, and no stage for {} within KV reach holds its layer {}", s,
             stage.role == StageRole::kPrefill ? "prefill" : "decode",
             stage.role == StageRole::kPrefill ? "decode" : "prefill", layer);
        break;
      }
    }
  }
}

void Checker::CheckUnused() {
  std::vector<int> named(problem_.num_nodes(), 0);
  for (const StagePlan& stage : plan_.stages) ++named[stage.nodes.front()];
  for (const UnusedNode& unused : plan_.unused) {
    if (unused.node < 0 || unused.node >= problem_.num_nodes()) {
      Fail("unused node {} is not in the cluster", unused.node);
      continue;
    }
    if (named[unused.node]++ > 0) {
      Fail("node {} is listed as unused and used, or as unused twice",
           problem_.nodes[unused.node].name);
    }
    if (unused.reason.empty()) {
      Fail("node {} is unused without a reason", problem_.nodes[unused.node].name);
    }
  }
  for (int i = 0; i < problem_.num_nodes(); ++i) {
    if (named[i] == 0) Fail("node {} is neither used nor unused", problem_.nodes[i].name);
  }
}

void Checker::CheckValue() {
  const double most = RecomputeFlow(problem_, plan_);
  const double tolerance = options_.tolerance_tokens_per_s;
  if (std::abs(plan_.tokens_per_s - most) > tolerance) {
    Fail("the plan claims {:.6f} tokens/s and its stages carry {:.6f}", plan_.tokens_per_s, most);
  }
  if (plan_.tokens_per_s > plan_.tokens_per_s_bound + tolerance) {
    Fail("the plan claims {:.6f} tokens/s above its own bound of {:.6f}", plan_.tokens_per_s,
         plan_.tokens_per_s_bound);
  }
}

std::vector<std::string> Checker::Run() {
  if (!CheckHeader() || !CheckStages() || !CheckEdges()) return violations_;
  CheckFlows();
  CheckCoverage();
  CheckRoles();
  CheckUnused();
  CheckValue();
  return violations_;
}

// Shortest augmenting paths over the residual capacities of a small dense graph.
double EdmondsKarp(std::vector<double> residual, int vertices, int source, int sink) {
  double total = 0;
  while (true) {
    std::vector<int> parent(vertices, vertices);  // `vertices` means not reached
    std::deque<int> frontier{source};
    parent[source] = source;
    while (!frontier.empty() && parent[sink] == vertices) {
      const int u = frontier.front();
      frontier.pop_front();
      for (int v = 0; v < vertices; ++v) {
        if (parent[v] != vertices || residual[u * vertices + v] <= kAugmentMin) continue;
        parent[v] = u;
        frontier.push_back(v);
      }
    }
    if (parent[sink] == vertices) return total;
    double amount = kTokenRateMax;
    for (int v = sink; v != source; v = parent[v]) {
      amount = std::min(amount, residual[parent[v] * vertices + v]);
    }
    for (int v = sink; v != source; v = parent[v]) {
      residual[parent[v] * vertices + v] -= amount;
      residual[v * vertices + parent[v]] += amount;
    }
    total += amount;
  }
}

}  // namespace

double RecomputeFlow(const FlowProblem& problem, const Plan& plan) {
  const int stages = static_cast<int>(plan.stages.size());
  const int vertices = 2 * stages + 2, source = 2 * stages, sink = source + 1;
  std::vector<double> capacity(static_cast<size_t>(vertices) * vertices, 0);
  const int width = problem.num_nodes() + 1;
  const auto node = [&](int s) { return plan.stages[s].nodes.front(); };
  const auto link = [&](int from, int to) { return problem.link_tokens_per_s[from * width + to]; };
  for (int s = 0; s < stages; ++s) {
    const LayerRange layers = plan.stages[s].layers;
    const int entry = 2 * s, exit = 2 * s + 1;
    capacity[entry * vertices + exit] = problem.nodes[node(s)].tokens_per_s[layers.size() - 1];
    if (layers.begin == 0) capacity[source * vertices + entry] = link(width - 1, node(s));
    if (layers.end == problem.num_layers) {
      capacity[exit * vertices + sink] = link(node(s), width - 1);
    }
    for (int t = 0; t < stages; ++t) {
      if (t != s && Adjoin(layers, plan.stages[t].layers, plan.partial_inference)) {
        capacity[exit * vertices + 2 * t] = link(node(s), node(t));
      }
    }
  }
  return EdmondsKarp(std::move(capacity), vertices, source, sink);
}

std::vector<std::string> CheckPlan(const FlowProblem& problem, const Plan& plan,
                                   const CheckOptions& options) {
  return Checker(problem, plan, options).Run();
}

}  // namespace millrace::plan
