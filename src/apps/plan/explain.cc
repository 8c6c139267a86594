#include "apps/plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/log.h"
#include "plan/placement_flow.h"
#include "plan/planner.h"

namespace millrace::apps {
namespace {

constexpr double kFull = 1 - 1e-6;  // of a capacity
constexpr size_t kRowsMax = 16;

plan::Placement PlacementOf(const plan::FlowProblem& problem, const Plan& plan) {
  plan::Placement placement(problem.nodes.size());
  for (const StagePlan& stage : plan.stages) {
    placement[static_cast<size_t>(stage.nodes.front())] = stage.layers;
  }
  return placement;
}

std::string EndName(const plan::FlowProblem& problem, const std::optional<int>& node) {
  return node ? problem.nodes[static_cast<size_t>(*node)].name : "coordinator";
}

// `problem` with a copy of `node` and its links. The node and its copy are linked as fast as the
// node's fastest link to another of its kind, or else to any node.
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

// The cluster with a copy of `node`. The copy's links share trunks with the others.
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

Result<std::vector<Explanation::OneMore>> TryOneMore(const PlanInputs& inputs,
                                                     const plan::Placement& placement, double flow,
                                                     const ExplainOptions& options) {
  const plan::FlowProblem& problem = inputs.problem;
  std::vector<Explanation::OneMore> found;
  std::set<std::string> seen;
  for (int node = 0; node < problem.num_nodes(); ++node) {
    const std::string kind = NodeLabel(problem, node);
    if (problem.nodes[static_cast<size_t>(node)].max_layers() == 0) continue;
    if (!seen.insert(kind).second) continue;
    if (options.progress) options.progress(kind);
    const plan::FlowProblem larger = WithOneMore(problem, node);
    plan::PlanOptions search;
    search.clock = options.clock;
    search.time_limit_s = options.seconds_per_kind;
    search.warm_starts = {placement};
    search.warm_starts[0].push_back({});
    MR_ASSIGN_OR_RETURN(const auto outcome,
                        plan::PlanWithinTrunks(larger, WithOneMore(inputs.cluster, node),
                                               inputs.token_bytes, search));
    found.push_back(
        {kind, outcome.plan.tokens_per_s, std::max(0.0, outcome.plan.tokens_per_s - flow)});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.added > b.added; });
  return found;
}

}  // namespace

Result<Explanation> ExplainPlan(const PlanInputs& inputs, const Plan& plan,
                                const ExplainOptions& options) {
  const plan::FlowProblem problem =
      WithTrunksFull(inputs.problem, inputs.cluster, plan, inputs.token_bytes);
  const plan::Placement placement = PlacementOf(problem, plan);
  const plan::PlacementFlow flow = SolvePlacementFlow(problem, placement);
  Explanation out;
  out.max_flow = flow.tokens_per_s;
  for (const plan::CutEdge& edge : flow.cut) {
    out.cut.push_back({edge.is_node() ? "compute of " + EndName(problem, edge.from)
                                      : "link " + EndName(problem, edge.from) + " -> " +
                                            EndName(problem, edge.to),
                       edge.capacity});
  }
  for (int node = 0; node < problem.num_nodes(); ++node) {
    const int layers = placement[static_cast<size_t>(node)].size();
    if (layers == 0) continue;
    const auto& spec = problem.nodes[static_cast<size_t>(node)];
    const double through = flow.node_tokens_per_s[static_cast<size_t>(node)];
    const double capacity = spec.TokensPerS(layers);
    out.nodes.push_back({spec.name, through, capacity, through >= capacity * kFull});
  }
  std::stable_sort(out.nodes.begin(), out.nodes.end(), [](const auto& a, const auto& b) {
    return a.tokens_per_s / a.capacity > b.tokens_per_s / b.capacity;
  });
  MR_ASSIGN_OR_RETURN(out.one_more, TryOneMore(inputs, placement, plan.tokens_per_s, options));
  return out;
}

std::string ExplanationText(const Explanation& explanation, const Plan& plan) {
  std::string out = fmt::format("{:.3f} tokens/s, of at most {:.3f} on this cluster\n\n",
                                plan.tokens_per_s, plan.tokens_per_s_bound);
  out += fmt::format("The binding cut, {:.3f} tokens/s in all:\n", explanation.max_flow);
  for (size_t i = 0; i < explanation.cut.size(); ++i) {
    if (i == kRowsMax) {
      out += fmt::format("  and {} more\n", explanation.cut.size() - i);
      break;
    }
    out += fmt::format("  {:>12.1f}  {}\n", explanation.cut[i].tokens_per_s,
                       Printable(explanation.cut[i].what));
  }
  out += "\nNode utilisation:\n";
  for (size_t i = 0; i < explanation.nodes.size(); ++i) {
    const Explanation::NodeUse& use = explanation.nodes[i];
    if (i == kRowsMax) {
      out += fmt::format("  and {} less busy\n", explanation.nodes.size() - i);
      break;
    }
    out += fmt::format("  {:>5.1f} %  {:>12.1f} of {:>12.1f}  {}{}\n",
                       100 * use.tokens_per_s / use.capacity, use.tokens_per_s, use.capacity,
                       Printable(use.node), use.bottleneck ? "  (bottleneck)" : "");
  }
  out += "\nOne more node of a kind would add at least:\n";
  for (const Explanation::OneMore& more : explanation.one_more) {
    out += fmt::format("  {:>12.1f}  {}, for {:.1f} tokens/s\n", more.added, Printable(more.kind),
                       more.tokens_per_s);
  }
  return out;
}

Json ExplanationJson(const Explanation& explanation) {
  Json cut = Json::array(), nodes = Json::array(), more = Json::array();
  for (const auto& binding : explanation.cut) {
    cut.push_back({{"what", binding.what}, {"tokens_per_s", binding.tokens_per_s}});
  }
  for (const auto& use : explanation.nodes) {
    nodes.push_back({{"node", use.node},
                     {"tokens_per_s", use.tokens_per_s},
                     {"capacity", use.capacity},
                     {"bottleneck", use.bottleneck}});
  }
  for (const auto& one : explanation.one_more) {
    more.push_back({{"kind", one.kind}, {"tokens_per_s", one.tokens_per_s}, {"added", one.added}});
  }
  return {{"max_flow", explanation.max_flow}, {"cut", cut}, {"nodes", nodes}, {"one_more", more}};
}

}  // namespace millrace::apps
