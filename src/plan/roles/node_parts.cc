#include "plan/roles/node_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace millrace::plan {
namespace {

constexpr double kFitsLink = 1 + 1e-9;  // of a link
constexpr double kSameRoom = 1e-9;      // layers

// What a stage carries in one phase if it has all of its node.
double WholeRate(const FlowNode& node, int layers, EdgePhase phase) {
  const std::vector<double>& rates = phase == EdgePhase::kPrefill  ? node.prefill_tokens_per_s
                                     : phase == EdgePhase::kDecode ? node.decode_tokens_per_s
                                                                   : node.tokens_per_s;
  const auto k = static_cast<size_t>(layers) - 1;
  return k < rates.size() ? rates[k] : 0;
}

// The share of its node's time that the flow through the stage takes.
double BusyShare(const FlowProblem& problem, const Plan& plan, int stage) {
  const StagePlan& it = plan.stages[static_cast<size_t>(stage)];
  const FlowNode& node = problem.nodes[static_cast<size_t>(it.nodes.front())];
  double share = 0;
  for (const PlanEdge& edge : plan.edges) {
    if (edge.to != stage || edge.phase == EdgePhase::kHandOver) continue;
    const double rate = WholeRate(node, it.layers.size(), edge.phase);
    if (rate > 0) share += edge.tokens_per_s / rate;
  }
  return share;
}

void Scale(std::vector<double>& rates, int count, double by) {
  if (std::ssize(rates) > count) rates.resize(static_cast<size_t>(count));
  for (double& rate : rates) rate *= by;
}

// Faster than any link of the problem: what goes from one part of a node to another.
double WithinNode(const FlowProblem& problem) {
  double fastest = 1;
  for (const double link : problem.link_tokens_per_s) fastest = std::max(fastest, link);
  for (const FlowNode& node : problem.nodes) {
    for (const auto* rates :
         {&node.tokens_per_s, &node.prefill_tokens_per_s, &node.decode_tokens_per_s}) {
      for (const double rate : *rates) fastest = std::max(fastest, rate);
    }
  }
  return fastest;
}

}  // namespace

NodeParts::NodeParts(const FlowProblem& problem, const Plan& plan) {
  for (int node = 0; node < problem.num_nodes(); ++node) {
    std::vector<int>& parts = nodes_.emplace_back();
    const int devices = problem.nodes[static_cast<size_t>(node)].devices;
    for (int stage = 0; stage < std::ssize(plan.stages); ++stage) {
      const StagePlan& it = plan.stages[static_cast<size_t>(stage)];
      if (it.nodes.front() != node) continue;
      parts.push_back(count());
      parts_.push_back({.node = node,
                        .stage = stage,
                        .devices = it.tensor_parallel,
                        .layers = it.layers,
                        .role = it.role});
    }
    if (parts.empty()) {
      parts.push_back(count());
      parts_.push_back({.node = node, .devices = devices});
    } else {
      SetShares(problem, plan, parts);
    }
    divided_ = divided_ || !IsWhole(parts_[static_cast<size_t>(parts.front())]);
  }
}

void NodeParts::SetShares(const FlowProblem& problem, const Plan& plan,
                          const std::vector<int>& parts) {
  const int devices = problem.nodes[static_cast<size_t>(NodeOf(parts.front()))].devices;
  double layers = 0, busy = 0;
  bool all_busy = true;
  std::vector<double> shares;
  for (const int p : parts) {
    const Part& part = parts_[static_cast<size_t>(p)];
    layers += part.layers.size();
    shares.push_back(BusyShare(problem, plan, *part.stage));
    busy += shares.back();
    all_busy = all_busy && shares.back() > 0;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts_[static_cast<size_t>(parts[i])];
    part.memory_share = part.layers.size() / layers;
    part.share = parts.size() > 1 && all_busy ? shares[i] / busy : part.memory_share;
    if (devices > 1) part.share = part.memory_share = static_cast<double>(part.devices) / devices;
  }
}

int NodeParts::MaxLayers(const FlowNode& node, const Part& part) const {
  const int room = std::max(node.max_layers(), node.room_layers);
  const int most = static_cast<int>(room * part.memory_share + kSameRoom);
  return std::min(node.max_layers(), std::max(most, part.layers.size()));
}

FlowProblem NodeParts::Divide(const FlowProblem& problem) const {
  FlowProblem out = problem;
  out.nodes.clear();
  for (const Part& part : parts_) {
    FlowNode& node = out.nodes.emplace_back(problem.nodes[static_cast<size_t>(part.node)]);
    if (IsWhole(part)) continue;
    const int most = MaxLayers(node, part);
    if (PartsOf(part.node).size() > 1) node.name += fmt::format(" (stage {})", *part.stage);
    Scale(node.tokens_per_s, most, part.share);
    Scale(node.prefill_tokens_per_s, most, part.share);
    Scale(node.decode_tokens_per_s, most, part.share);
    node.devices = part.devices;
    node.room_layers = most;
  }
  const double within = WithinNode(problem);
  const auto side = static_cast<size_t>(count()) + 1;
  out.link_tokens_per_s.assign(side * side, 0);
  for (int from = 0; from <= count(); ++from) {
    for (int to = 0; to <= count(); ++to) {
      if (from == to) continue;
      const int a = EndOf(from), b = EndOf(to);
      out.link_tokens_per_s[static_cast<size_t>(from) * side + static_cast<size_t>(to)] =
          a == b ? within : problem.Link(a, b);
    }
  }
  return out;
}

GoodputProblem NodeParts::Divide(const GoodputProblem& problem) const {
  GoodputProblem out = problem;
  out.losable.clear();
  if (!divided()) return out;
  out.flow = Divide(problem.flow);
  out.rates.clear();
  out.kv_token_layers.clear();
  out.nic_tokens_per_s.clear();
  out.on_devices.clear();
  for (int p = 0; p < count(); ++p) {
    const Part& part = parts_[static_cast<size_t>(p)];
    const auto node = static_cast<size_t>(part.node);
    FlowNode& flow = out.flow.nodes[static_cast<size_t>(p)];
    DevicesShare devices = DevicesOf(problem, part, flow);
    flow.tokens_per_s = std::move(devices.tokens_per_s);
    out.rates.push_back(devices.rates);
    out.kv_token_layers.push_back(std::move(devices.kv_token_layers));
    out.machine.push_back(PartsOf(part.node).front());
    if (!problem.nic_tokens_per_s.empty()) {
      out.nic_tokens_per_s.push_back(problem.nic_tokens_per_s[node]);
    }
  }
  for (Trunk& trunk : out.trunks) {
    const auto links = std::exchange(trunk.links, {});
    for (const auto& [from, to] : links) {
      for (const int a : EndsOf(from)) {
        for (const int b : EndsOf(to)) trunk.links.emplace_back(a, b);
      }
    }
  }
  DivideTables(problem, out);
  AddPhaseRates(out);
  return out;
}

// What the part has of its node; `flow` is the part's.
DevicesShare NodeParts::DevicesOf(const GoodputProblem& problem, const Part& part,
                                  const FlowNode& flow) const {
  const auto node = static_cast<size_t>(part.node);
  DevicesShare out{flow.tokens_per_s, problem.rates[node], problem.kv_token_layers[node]};
  if (IsWhole(part)) return out;
  const auto layers = static_cast<size_t>(part.layers.size());
  const auto devices = static_cast<size_t>(part.devices);
  if (node < problem.on_devices.size() && devices <= problem.on_devices[node].size() &&
      problem.on_devices[node][devices - 1].tokens_per_s.size() >= layers) {
    return problem.on_devices[node][devices - 1];
  }
  for (double* seconds :
       {&out.rates.prefill_s_per_token, &out.rates.decode_s_per_step, &out.rates.decode_s_per_token,
        &out.rates.head_s_per_step, &out.rates.head_s_per_token}) {
    *seconds /= part.share;
  }
  // Without the memory of the node's other devices or stages. What fits beside no layer follows
  // from what the first two layers take.
  std::vector<int64_t>& kv = out.kv_token_layers;
  const int64_t layer = kv.size() > 1 ? kv[0] - kv[1] : 0;
  const auto all = static_cast<double>(kv[0] + layer + problem.end_token_layers);
  const auto others = static_cast<int64_t>((1 - part.memory_share) * all);
  kv.resize(flow.tokens_per_s.size());
  for (int64_t& tokens : kv) tokens = std::max<int64_t>(0, tokens - others);
  return out;
}

// Latencies, and where KV may go.
void NodeParts::DivideTables(const GoodputProblem& problem, GoodputProblem& out) const {
  const auto n = nodes_.size();
  const auto parts = parts_.size();
  out.link_latency_s.assign((parts + 1) * (parts + 1), 0);
  if (!problem.kv_reach.empty()) out.kv_reach.assign(parts * parts, 0);
  for (size_t from = 0; from <= parts; ++from) {
    for (size_t to = 0; to <= parts; ++to) {
      const auto a = static_cast<size_t>(EndOf(static_cast<int>(from)));
      const auto b = static_cast<size_t>(EndOf(static_cast<int>(to)));
      if (a != b) {
        out.link_latency_s[from * (parts + 1) + to] = problem.link_latency_s[a * (n + 1) + b];
      }
      if (problem.kv_reach.empty() || from == parts || to == parts) continue;
      out.kv_reach[from * parts + to] = a == b ? 1 : problem.kv_reach[a * n + b];
    }
  }
}

std::vector<int> NodeParts::EndsOf(int node) const {
  if (node == static_cast<int>(nodes_.size())) return {count()};
  return PartsOf(node);
}

RolePlacement NodeParts::Placed() const {
  RolePlacement out;
  for (const Part& part : parts_) {
    out.layers.push_back(part.layers);
    out.roles.push_back(part.role);
  }
  return out;
}

RolePlacement NodeParts::WithoutNode(int node) const {
  RolePlacement out = Placed();
  for (const int part : PartsOf(node)) out.layers[static_cast<size_t>(part)] = {};
  return out;
}

PlacementFlow NodeParts::Flow(const FlowProblem& of_parts, const Placement& layers) const {
  FlowProblem narrowed = of_parts;
  PlacementFlow flow = SolvePlacementFlow(of_parts, layers);
  while (divided() && Narrow(flow, of_parts, narrowed)) {
    flow = SolvePlacementFlow(narrowed, layers);
  }
  return flow;
}

// The parts' shares of an overloaded link become their links, and those that carry nothing get
// none: together they never overload it again. Whether there was one.
bool NodeParts::Narrow(const PlacementFlow& flow, const FlowProblem& of_parts,
                       FlowProblem& narrowed) const {
  const auto side = static_cast<size_t>(count()) + 1;
  std::map<std::pair<int, int>, std::vector<const FlowEdge*>> links;  // by nodes
  const auto end = [&](const std::optional<int>& part) { return part.value_or(count()); };
  for (const FlowEdge& edge : flow.edges) {
    links[{EndOf(end(edge.from)), EndOf(end(edge.to))}].push_back(&edge);
  }
  bool found = false;
  for (const auto& [ends, edges] : links) {
    double load = 0;
    for (const FlowEdge* edge : edges) load += edge->tokens_per_s;
    const double link = of_parts.Link(end(edges.front()->from), end(edges.front()->to));
    if (ends.first == ends.second || load <= link * kFitsLink) continue;
    found = true;
    const auto cell = [&](int from, int to) -> double& {
      return narrowed.link_tokens_per_s[static_cast<size_t>(from) * side + static_cast<size_t>(to)];
    };
    for (const int from : EndsOf(ends.first)) {
      for (const int to : EndsOf(ends.second)) cell(from, to) = 0;
    }
    for (const FlowEdge* edge : edges) {
      cell(end(edge->from), end(edge->to)) = edge->tokens_per_s * link / load;
    }
  }
  return found;
}

Plan NodeParts::Merge(Plan of_parts) const {
  if (!divided()) return of_parts;
  std::vector<bool> used(nodes_.size(), false), named(nodes_.size(), false);
  for (StagePlan& stage : of_parts.stages) {
    const Part& part = parts_[static_cast<size_t>(stage.nodes.front())];
    stage.nodes = {part.node};
    stage.tensor_parallel = part.devices;
    used[static_cast<size_t>(part.node)] = true;
  }
  for (const UnusedNode& unused : std::exchange(of_parts.unused, {})) {
    const int node = NodeOf(unused.node);
    if (used[static_cast<size_t>(node)] || named[static_cast<size_t>(node)]) continue;
    named[static_cast<size_t>(node)] = true;
    of_parts.unused.push_back({node, unused.reason});
  }
  return of_parts;
}

}  // namespace millrace::plan
