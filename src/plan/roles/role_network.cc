#include "plan/roles/role_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace millrace::plan {

namespace {

double HopLatency(const GoodputProblem& problem, int from, int to) {
  return problem.link_latency_s[from * (problem.flow.num_nodes() + 1) + to];
}

}  // namespace

RoleNetwork::RoleNetwork(const RoleProblem& problem, const PoolFlow& prefill,
                         const Placement& prefill_layers, const PoolFlow& decode,
                         const Placement& decode_layers)
    : problem_(problem) {
  const GoodputProblem& p = *problem.goodput;
  AddPool(prefill, p.prompt_tokens);
  AddPool(decode, p.output_tokens);
  double moved = 0, seconds = 0;
  for (const PoolFlow::Stage& from : prefill.stages) {
    for (const PoolFlow::Stage& to : decode.stages) {
      const LayerRange a = prefill_layers[from.node], b = decode_layers[to.node];
      const int layers = std::min(a.end, b.end) - std::max(a.begin, b.begin);
      if (layers <= 0) continue;
      const double share = from.share * to.share;
      const double tokens = layers * p.prompt_tokens * p.flow.kv_layer_tokens;
      hand_overs_.push_back({from.node, to.node, share});
      loads_.push_back({from.node, to.node, share * tokens});
      // The puller asks, and the answer comes back.
      const double asked = HopLatency(p, to.node, from.node);
      const double answered = HopLatency(p, from.node, to.node);
      moved += share;
      seconds += share * (asked + answered + tokens / p.flow.Link(from.node, to.node));
    }
  }
  kv_s_ = moved > 0 ? seconds / moved : 0;
  FindMost();
}

double RoleNetwork::KvSeconds(double rate) const {
  const double busy = std::min(kBusyMax, rate / most_ * kBusyMax);
  return kv_s_ * (1 + busy / (2 * (1 - busy)));
}

void RoleNetwork::AddPool(const PoolFlow& pool, double tokens) {
  for (const FlowEdge& edge : pool.edges) {
    if (edge.from && edge.to) loads_.push_back({*edge.from, *edge.to, pool.Share(edge) * tokens});
  }
}

template <typename Name>
void RoleNetwork::Bound(double tokens_per_s, double tokens, const Name& name) {
  if (tokens <= 0 || tokens_per_s * kBusyMax / tokens >= most_) return;
  most_ = tokens_per_s * kBusyMax / tokens;
  limit_ = name();
}

void RoleNetwork::FindMost() {
  const GoodputProblem& p = *problem_.goodput;
  std::vector<double> out(problem_.num_nodes(), 0), in(problem_.num_nodes(), 0);
  std::map<std::pair<int, int>, double> links;  // by machines
  for (const LinkLoad& load : loads_) {
    const int from = MachineOf(p.machine, load.from), to = MachineOf(p.machine, load.to);
    if (from == to) continue;
    out[from] += load.tokens;
    in[to] += load.tokens;
    links[{from, to}] += load.tokens;
  }
  for (const auto& [ends, tokens] : links) {
    Bound(p.flow.Link(ends.first, ends.second), tokens, [&, &ends = ends] {
      return fmt::format("the link {} -> {}", p.flow.nodes[ends.first].name,
                         p.flow.nodes[ends.second].name);
    });
  }
  for (size_t i = 0; i < p.nic_tokens_per_s.size(); ++i) {
    if (p.nic_tokens_per_s[i] <= 0) continue;
    Bound(p.nic_tokens_per_s[i], std::max(out[i], in[i]),
          [&] { return "the network card of " + p.flow.nodes[i].name; });
  }
  for (size_t t = 0; t < p.trunks.size(); ++t) {
    double tokens = 0;
    for (const LinkLoad& load : loads_) {
      const auto& links = p.trunks[t].links;
      const std::pair<int, int> link(load.from, load.to);
      if (std::find(links.begin(), links.end(), link) != links.end()) tokens += load.tokens;
    }
    Bound(p.trunks[t].tokens_per_s, tokens, [&] { return fmt::format("trunk {}", t); });
  }
}

}  // namespace millrace::plan
