#include "apps/plan/one_more.h"

#include <algorithm>
#include <map>
#include <set>

namespace millrace::apps {

plan::FlowProblem WithOneMore(const plan::FlowProblem& problem, int node) {
  plan::FlowProblem out = problem;
  const int n = problem.num_nodes();
  out.nodes.push_back(problem.nodes[static_cast<size_t>(node)]);
  out.nodes.back().name += " (new)";
  const size_t side = static_cast<size_t>(n) + 2;
  out.link_tokens_per_s.assign(side * side, 0);
  // Maps each index of the new problem to the old one: the copy maps to the node.
  const auto old = [&](int place) { return place < n ? place : place == n ? node : n; };
  for (int from = 0; from <= n + 1; ++from) {
    for (int to = 0; to <= n + 1; ++to) {
      if (old(from) == old(to)) continue;
      out.link_tokens_per_s[static_cast<size_t>(from) * side + static_cast<size_t>(to)] =
          problem.Link(old(from), old(to));
    }
  }
  double alike = 0, any = 0;
  for (int other = 0; other < n; ++other) {
    if (other == node) continue;
    const double rate = std::max(problem.Link(node, other), problem.Link(other, node));
    any = std::max(any, rate);
    if (NodeLabel(problem, other) == NodeLabel(problem, node)) alike = std::max(alike, rate);
  }
  const double rate = alike > 0 ? alike : any;
  out.link_tokens_per_s[static_cast<size_t>(node) * side + static_cast<size_t>(n)] = rate;
  out.link_tokens_per_s[static_cast<size_t>(n) * side + static_cast<size_t>(node)] = rate;
  return out;
}

plan::GoodputProblem WithOneMore(const plan::GoodputProblem& problem, int node) {
  plan::GoodputProblem out = problem;
  const auto at = static_cast<size_t>(node);
  const int n = problem.flow.num_nodes();
  out.flow = WithOneMore(problem.flow, node);
  out.rates.push_back(problem.rates[at]);
  out.kv_token_layers.push_back(problem.kv_token_layers[at]);
  if (!problem.on_devices.empty()) out.on_devices.push_back(problem.on_devices[at]);
  if (!problem.nic_tokens_per_s.empty())
    out.nic_tokens_per_s.push_back(problem.nic_tokens_per_s[at]);
  const auto old = [&](int place) { return place < n ? place : place == n ? node : n; };
  const size_t side = static_cast<size_t>(n) + 2;
  out.link_latency_s.assign(side * side, 0);
  for (int from = 0; from <= n + 1; ++from) {
    for (int to = 0; to <= n + 1; ++to) {
      out.link_latency_s[static_cast<size_t>(from) * side + static_cast<size_t>(to)] =
          problem.link_latency_s[static_cast<size_t>(old(from)) * (side - 1) +
                                 static_cast<size_t>(old(to))];
    }
  }
  for (plan::Trunk& trunk : out.trunks) {
    const auto links = trunk.links;
    for (const auto& [from, to] : links) {
      if (from == node) trunk.links.emplace_back(n, to);
      if (to == node) trunk.links.emplace_back(from, n);
    }
  }
  if (problem.kv_reach.empty()) return out;
  const auto count = static_cast<size_t>(n);
  out.kv_reach.assign((count + 1) * (count + 1), 0);
  for (size_t from = 0; from <= count; ++from) {
    for (size_t to = 0; to <= count; ++to) {
      out.kv_reach[from * (count + 1) + to] =
          problem.kv_reach[(from < count ? from : at) * count + (to < count ? to : at)];
    }
  }
  return out;
}

std::vector<Plan> WithStagesOnLast(const plan::FlowProblem& larger, const Plan& plan,
                                   const std::vector<StageRole>& roles) {
  const int last = larger.num_nodes() - 1;
  const plan::FlowNode& node = larger.nodes.back();
  std::set<LayerRange> ranges;
  std::map<int, std::vector<StagePlan>> alike;  // by node
  for (const StagePlan& stage : plan.stages) {
    ranges.insert(stage.layers);
    const int other = stage.nodes.front();
    if (NodeLabel(larger, other) == NodeLabel(larger, last)) alike[other].push_back(stage);
  }
  std::vector<std::vector<StagePlan>> added;
  for (const LayerRange& layers : ranges) {
    if (layers.size() > node.max_layers()) continue;
    for (const StageRole role : roles) {
      added.push_back({{.tensor_parallel = node.devices, .layers = layers, .role = role}});
    }
  }
  for (const auto& [other, stages] : alike) {
    if (stages.size() > 1) added.push_back(stages);
  }
  std::vector<Plan> plans;
  for (const std::vector<StagePlan>& stages : added) {
    Plan& with = plans.emplace_back(plan);
    for (const StagePlan& stage : stages) {
      with.stages.push_back(stage);
      with.stages.back().nodes = {last};
    }
  }
  return plans;
}

ClusterSpec WithOneMore(const ClusterSpec& cluster, NodeIndex node) {
  ClusterSpec out = cluster;
  const int n = cluster.coordinator();
  out.nodes.push_back(cluster.nodes[static_cast<size_t>(node)]);
  const auto moved = [n](int end) { return end == n ? n + 1 : end; };
  for (LinkSpec& link : out.links) {
    link.from = moved(link.from);
    link.to = moved(link.to);
  }
  for (LinkSpec link : cluster.links) {
    if (link.from != node && link.to != node) continue;
    link.from = link.from == node ? n : moved(link.from);
    link.to = link.to == node ? n : moved(link.to);
    out.links.push_back(link);
  }
  return out;
}

}  // namespace millrace::apps
