// How much a plan carries: conservation, capacities, hand-overs and the claimed value.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "plan/flow/check_rules.h"

namespace millrace::plan {
namespace {

constexpr double kAugmentMin = 1e-9;  // tokens/s: smaller residual capacity is rounding
constexpr double kBalanced = 1e-3;    // relative difference of prompts and outputs
constexpr EdgePhase kWalked[] = {EdgePhase::kBoth, EdgePhase::kPrefill, EdgePhase::kDecode};

bool AnyPhase(const Plan& plan, EdgePhase phase) {
  return std::any_of(plan.edges.begin(), plan.edges.end(),
                     [phase](const PlanEdge& edge) { return edge.phase == phase; });
}

bool HasPhases(const Plan& plan) {
  return AnyPhase(plan, EdgePhase::kPrefill) || AnyPhase(plan, EdgePhase::kDecode);
}

// By stage: whether it has edges of the phase. Without phases the edges do not depend on the roles,
// and a stage may have none.
std::vector<char> ServesPhase(const Plan& plan, EdgePhase phase) {
  if (!HasPhases(plan)) return std::vector<char>(plan.stages.size(), phase == EdgePhase::kBoth);
  std::vector<char> serves(plan.stages.size(), 0);
  for (const PlanEdge& edge : plan.edges) {
    if (edge.phase != phase) continue;
    if (edge.from) serves[*edge.from] = 1;
    if (edge.to) serves[*edge.to] = 1;
  }
  return serves;
}

// By the whole node; a stage on some of its devices has that share of it.
double RateOnNode(const FlowProblem& problem, const StagePlan& stage, EdgePhase phase) {
  const FlowNode& node = problem.nodes[stage.nodes.front()];
  const std::vector<double>& rates = phase == EdgePhase::kPrefill  ? node.prefill_tokens_per_s
                                     : phase == EdgePhase::kDecode ? node.decode_tokens_per_s
                                                                   : node.tokens_per_s;
  const size_t k = static_cast<size_t>(stage.layers.size()) - 1;
  return k < rates.size() ? rates[k] : 0;
}

bool SharesNode(const Plan& plan, const StagePlan& stage) {
  return std::count_if(plan.stages.begin(), plan.stages.end(), [&](const StagePlan& other) {
           return other.nodes.front() == stage.nodes.front();
         }) > 1;
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

double StageRateOf(const FlowProblem& problem, const StagePlan& stage, EdgePhase phase) {
  const int devices = problem.nodes[stage.nodes.front()].devices;
  return RateOnNode(problem, stage, phase) * stage.tensor_parallel / devices;
}

// The most that the stages carry in one phase, if they do nothing else.
double MaxFlowOfPhase(const FlowProblem& problem, const Plan& plan, EdgePhase phase) {
  const int stages = static_cast<int>(plan.stages.size());
  const int vertices = 2 * stages + 2, source = 2 * stages, sink = source + 1;
  std::vector<double> capacity(static_cast<size_t>(vertices) * vertices, 0);
  const int width = problem.num_nodes() + 1;
  const auto node = [&](int s) { return plan.stages[s].nodes.front(); };
  const std::vector<char> serves = ServesPhase(plan, phase);
  const auto link = [&](int from, int to) {
    return from == to ? kTokenRateMax : problem.link_tokens_per_s[from * width + to];
  };
  for (int s = 0; s < stages; ++s) {
    const StagePlan& stage = plan.stages[s];
    if (!serves[s]) continue;
    const int entry = 2 * s, exit = 2 * s + 1;
    capacity[entry * vertices + exit] = StageRateOf(problem, stage, phase);
    if (stage.layers.begin == 0) capacity[source * vertices + entry] = link(width - 1, node(s));
    if (stage.layers.end == problem.num_layers) {
      capacity[exit * vertices + sink] = link(node(s), width - 1);
    }
    for (int t = 0; t < stages; ++t) {
      if (t == s || !serves[t]) continue;
      if (Adjoin(stage.layers, plan.stages[t].layers, plan.partial_inference)) {
        capacity[exit * vertices + 2 * t] = link(node(s), node(t));
      }
    }
  }
  return EdmondsKarp(std::move(capacity), vertices, source, sink);
}

}  // namespace

double PlanChecker::StageRate(const StagePlan& stage, EdgePhase phase) const {
  return StageRateOf(problem_, stage, phase);
}

double PlanChecker::Entering(EdgePhase phase) const {
  double sum = 0;
  for (const PlanEdge& edge : plan_.edges) {
    if (!edge.from && edge.phase == phase) sum += edge.tokens_per_s;
  }
  return sum;
}

bool PlanChecker::HandsOver() const { return AnyPhase(plan_, EdgePhase::kHandOver); }

void PlanChecker::CheckConservation() {
  const size_t stages = plan_.stages.size();
  std::vector<double> through(stages, 0);
  for (const EdgePhase phase : kWalked) {
    std::vector<double> in(stages, 0), out(stages, 0);
    for (const PlanEdge& edge : plan_.edges) {
      if (edge.phase != phase) continue;
      if (edge.from) out[*edge.from] += edge.tokens_per_s;
      if (edge.to) in[*edge.to] += edge.tokens_per_s;
    }
    for (size_t s = 0; s < stages; ++s) {
      through[s] += in[s];
      if (std::abs(in[s] - out[s]) <= options_.tolerance_tokens_per_s) continue;
      Fail("stage {} receives {:.6g} tokens/s and sends {:.6g}{}", s, in[s], out[s],
           phase == EdgePhase::kBoth      ? ""
           : phase == EdgePhase::kPrefill ? " of prompts"
                                          : " of outputs");
    }
  }
  for (size_t s = 0; s < stages; ++s) {
    if (through[s] <= 0) Fail("stage {} carries nothing", s);
  }
}

// The phases of a stage, and the stages of a node with one device, share its time.
void PlanChecker::CheckTime() {
  std::map<int, double> busy;  // by node with one device
  for (size_t s = 0; s < plan_.stages.size(); ++s) {
    const StagePlan& stage = plan_.stages[s];
    double share = 0, carried = 0, most = 0;
    for (const EdgePhase phase : kWalked) {
      double in = 0;
      for (const PlanEdge& edge : plan_.edges) {
        if (edge.to == static_cast<int>(s) && edge.phase == phase) in += edge.tokens_per_s;
      }
      if (in <= 0) continue;
      const double rate = StageRate(stage, phase);
      if (rate <= 0) {
        Fail("stage {} has a role, and the rates of each phase are not known", s);
        return;
      }
      share += in / rate;
      carried += in;
      most = std::max(most, rate);
    }
    const double spare = options_.tolerance_tokens_per_s / std::max(most, 1e-9);
    if (share > 1 + spare) {
      Fail("stage {} carries {:.6g} tokens/s and can compute {:.6g}", s, carried, carried / share);
    }
    const int node = stage.nodes.front();
    if (problem_.nodes[node].devices == 1) busy[node] += share;
  }
  for (const auto& [node, share] : busy) {
    const auto alone = std::count_if(plan_.stages.begin(), plan_.stages.end(),
                                     [&, n = node](const auto& s) { return s.nodes.front() == n; });
    if (alone > 1 && share > 1 + kBalanced) {
      Fail("the stages of node {} need {:.4g} times its time", problem_.nodes[node].name, share);
    }
  }
}

// All phases together; the KV of hand-overs counts by its layers.
void PlanChecker::CheckLinks() {
  std::map<std::pair<int, int>, double> loads;
  for (const PlanEdge& edge : plan_.edges) {
    double weight = 1;
    if (edge.phase == EdgePhase::kHandOver) {
      const LayerRange a = plan_.stages[*edge.from].layers, b = plan_.stages[*edge.to].layers;
      const int layers = std::min(a.end, b.end) - std::max(a.begin, b.begin);
      weight = problem_.kv_layer_tokens * std::max(0, layers);
    }
    loads[{NodeOf(edge.from), NodeOf(edge.to)}] += weight * edge.tokens_per_s;
  }
  const auto name = [&](int node) {
    return node == problem_.num_nodes() ? std::string("coordinator") : problem_.nodes[node].name;
  };
  for (const auto& [ends, load] : loads) {
    if (ends.first == ends.second) continue;
    const double link =
        problem_.link_tokens_per_s[ends.first * (problem_.num_nodes() + 1) + ends.second];
    if (load <= link + options_.tolerance_tokens_per_s) continue;
    Fail("{} -> {} carries {:.6g} tokens/s over a link of {:.6g}", name(ends.first),
         name(ends.second), load, link);
  }
}

// Every layer's KV of every prompt goes to a stage that holds the layer.
void PlanChecker::CheckHandOvers() {
  if (!HandsOver()) return;
  const double prompts = Entering(EdgePhase::kPrefill);
  for (int layer = 0; layer < problem_.num_layers; ++layer) {
    const auto holds = [&](int s) {
      return plan_.stages[s].layers.begin <= layer && layer < plan_.stages[s].layers.end;
    };
    double moved = 0;
    for (const PlanEdge& edge : plan_.edges) {
      if (edge.phase != EdgePhase::kHandOver || !holds(*edge.from) || !holds(*edge.to)) continue;
      moved += edge.tokens_per_s;
    }
    // With partial inference several stages may hold a layer that only one of them runs.
    const bool less = moved < prompts - options_.tolerance_tokens_per_s;
    const bool more = !plan_.partial_inference && moved > prompts + options_.tolerance_tokens_per_s;
    if (!less && !more) continue;
    Fail("the KV of layer {} is handed over at {:.6g} tokens/s and prompts come at {:.6g}", layer,
         moved, prompts);
    return;
  }
  if (plan_.partial_inference) return;
  for (size_t s = 0; s < plan_.stages.size(); ++s) {
    double in = 0, out = 0;
    const int begin = plan_.stages[s].layers.begin;
    for (const PlanEdge& edge : plan_.edges) {
      if (edge.phase == EdgePhase::kPrefill && edge.to == static_cast<int>(s)) {
        in += edge.tokens_per_s;
      }
      if (edge.phase != EdgePhase::kHandOver || edge.from != static_cast<int>(s)) continue;
      const LayerRange to = plan_.stages[*edge.to].layers;
      if (to.begin <= begin && begin < to.end) out += edge.tokens_per_s;
    }
    if (std::abs(in - out) <= options_.tolerance_tokens_per_s) continue;
    Fail(
        "stage {} computes prompts at {:.6g} tokens/s and hands over the KV of its layer {} at "
        "{:.6g}",
        s, in, begin, out);
  }
}

// As many requests are decoded as are prefilled.
void PlanChecker::CheckBalance() {
  const double prompts = Entering(EdgePhase::kPrefill), outputs = Entering(EdgePhase::kDecode);
  if ((prompts > 0) != (outputs > 0)) {
    Fail("prompts come at {:.6g} tokens/s and outputs at {:.6g}: a request needs both", prompts,
         outputs);
    return;
  }
  if (options_.prompt_tokens <= 0 || options_.output_tokens <= 0 || prompts <= 0) return;
  const double prefilled = prompts / options_.prompt_tokens;
  const double decoded = outputs / options_.output_tokens;
  if (std::abs(prefilled - decoded) <= kBalanced * std::max(prefilled, decoded)) return;
  Fail("{:.6g} requests/s are prefilled and {:.6g} decoded", prefilled, decoded);
}

void PlanChecker::CheckValue() {
  const double tolerance = options_.tolerance_tokens_per_s;
  double entering = 0;
  for (const EdgePhase phase : kWalked) entering += Entering(phase);
  if (std::abs(entering - plan_.tokens_per_s) > tolerance) {
    Fail("the plan claims {:.6g} tokens/s and its edges take in {:.6g}", plan_.tokens_per_s,
         entering);
  }
  if (plan_.tokens_per_s > plan_.tokens_per_s_bound + tolerance) {
    Fail("the plan claims {:.6f} tokens/s above its own bound of {:.6f}", plan_.tokens_per_s,
         plan_.tokens_per_s_bound);
  }
  const bool roles = HasPhases(plan_);
  if (roles && (options_.prompt_tokens <= 0 || options_.output_tokens <= 0)) return;
  const double most = RecomputeFlow(problem_, plan_, options_);
  // A plan with roles leaves out what another phase or the hand-overs need, and one with several
  // stages on a node does not use every way between them.
  const bool shared = std::any_of(plan_.stages.begin(), plan_.stages.end(),
                                  [&](const StagePlan& s) { return SharesNode(plan_, s); });
  const bool off = roles || shared ? plan_.tokens_per_s > most + tolerance
                                   : std::abs(plan_.tokens_per_s - most) > tolerance;
  if (!off) return;
  Fail("the plan claims {:.6f} tokens/s and its stages carry {:.6f}", plan_.tokens_per_s, most);
}

double RecomputeFlow(const FlowProblem& problem, const Plan& plan, const CheckOptions& options) {
  double both = 0;
  const bool roles = HasPhases(plan);
  if (!roles || AnyPhase(plan, EdgePhase::kBoth)) {
    both = MaxFlowOfPhase(problem, plan, EdgePhase::kBoth);
  }
  if (!roles || options.prompt_tokens <= 0 || options.output_tokens <= 0) return both;
  const double requests =
      std::min(MaxFlowOfPhase(problem, plan, EdgePhase::kPrefill) / options.prompt_tokens,
               MaxFlowOfPhase(problem, plan, EdgePhase::kDecode) / options.output_tokens);
  return both + requests * (options.prompt_tokens + options.output_tokens);
}

}  // namespace millrace::plan
