#include "apps/plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "apps/plan/one_more.h"
#include "base/log.h"
#include "plan/placement_flow.h"
#include "plan/planner.h"
#include "sim/cluster/cluster_sim.h"

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

Status SeveralStagesPerNode() {
  return InvalidArgument(
      "a node of the plan has several stages, and such plans cannot be explained; 'millrace "
      "simulate --plan' shows what limits them");
}

Result<Explanation> ExplainPlan(const PlanInputs& inputs, const Plan& plan,
                                const ExplainOptions& options) {
  if (sim::UsedNodes(plan).size() != plan.stages.size()) return SeveralStagesPerNode();
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
