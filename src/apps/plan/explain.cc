#include "apps/plan/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "apps/plan/one_more.h"
#include "base/log.h"
#include "plan/flow/placement_flow.h"
#include "plan/flow/planner.h"
#include "plan/roles/node_parts.h"

namespace millrace::apps {
namespace {

constexpr double kFull = 1 - 1e-6;  // of a capacity
constexpr size_t kRowsMax = 16;

std::string EndName(const plan::FlowProblem& problem, const std::optional<int>& node) {
  return node ? problem.nodes[static_cast<size_t>(*node)].name : "coordinator";
}

// The flow of the best plan found with one more node, the last of `larger`.
class OneMoreSearch {
 public:
  OneMoreSearch(const PlanInputs& inputs, const Plan& plan, const ExplainOptions& options)
      : inputs_(inputs), plan_(plan), options_(options) {}

  Result<double> Run(int node) const {
    const plan::FlowProblem larger = WithOneMore(inputs_.problem, node);
    const ClusterSpec cluster = WithOneMore(inputs_.cluster, node);
    const plan::NodeParts parts(larger, plan_);
    plan::PlanOptions search;
    search.clock = options_.clock;
    search.time_limit_s = options_.seconds_per_kind;
    // A search places one range of layers on a node.
    if (!parts.divided()) search.warm_starts = {parts.Placed().layers};
    MR_ASSIGN_OR_RETURN(const auto outcome,
                        plan::PlanWithinTrunks(larger, cluster, inputs_.token_bytes, search));
    double most = outcome.plan.tokens_per_s;
    if (!parts.divided()) return most;
    for (const Plan& with : WithStagesOnLast(larger, plan_, {StageRole::kBoth})) {
      most = std::max(most, FlowOf(larger, cluster, with));
    }
    return most;
  }

 private:
  // Zero if it would overload a trunk.
  double FlowOf(const plan::FlowProblem& larger, const ClusterSpec& cluster,
                const Plan& plan) const {
    const plan::NodeParts parts(larger, plan);
    const plan::FlowProblem problem =
        parts.Divide(WithTrunksFull(larger, cluster, plan, inputs_.token_bytes));
    const plan::Placement placement = parts.Placed().layers;
    const plan::PlacementFlow flow = parts.Flow(problem, placement);
    const Plan made = parts.Merge(MakePlan(problem, placement, flow, 0));
    const auto loads = TrunkLoads(cluster, made, inputs_.token_bytes);
    const bool fits =
        std::ranges::all_of(loads, [](const auto& load) { return load.ratio() <= 1 / kFull; });
    return fits ? flow.tokens_per_s : 0;
  }

  const PlanInputs& inputs_;
  const Plan& plan_;
  const ExplainOptions& options_;
};

Result<std::vector<Explanation::OneMore>> TryOneMore(const PlanInputs& inputs, const Plan& plan,
                                                     const ExplainOptions& options) {
  const plan::FlowProblem& problem = inputs.problem;
  std::vector<Explanation::OneMore> found;
  std::set<std::string> seen;
  const OneMoreSearch search(inputs, plan, options);
  for (int node = 0; node < problem.num_nodes(); ++node) {
    const std::string kind = NodeLabel(problem, node);
    if (problem.nodes[static_cast<size_t>(node)].max_layers() == 0) continue;
    if (!seen.insert(kind).second) continue;
    if (options.progress) options.progress(kind);
    MR_ASSIGN_OR_RETURN(const double most, search.Run(node));
    found.push_back({kind, most, std::max(0.0, most - plan.tokens_per_s)});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.added > b.added; });
  return found;
}

// The parts of one node together; `placement` is by part.
Explanation::NodeUse UseOf(const plan::NodeParts& parts, int node, const plan::FlowProblem& problem,
                           const plan::Placement& placement, const plan::PlacementFlow& flow) {
  Explanation::NodeUse use{.stages = 0};
  for (const int p : parts.PartsOf(node)) {
    const auto part = static_cast<size_t>(p);
    const int layers = placement[part].size();
    if (layers == 0) continue;
    ++use.stages;
    const double through = flow.node_tokens_per_s[part];
    const double capacity = problem.nodes[part].TokensPerS(layers);
    use.tokens_per_s += through;
    use.capacity += capacity;
    use.busy += parts.ShareOf(p) * through / capacity;
    use.bottleneck = use.bottleneck || through >= capacity * kFull;
  }
  return use;
}

}  // namespace

Result<Explanation> ExplainPlan(const PlanInputs& inputs, const Plan& plan,
                                const ExplainOptions& options) {
  const plan::NodeParts parts(inputs.problem, plan);
  const plan::FlowProblem problem =
      parts.Divide(WithTrunksFull(inputs.problem, inputs.cluster, plan, inputs.token_bytes));
  const plan::Placement placement = parts.Placed().layers;
  const plan::PlacementFlow flow = parts.Flow(problem, placement);
  Explanation out;
  out.max_flow = flow.tokens_per_s;
  for (const plan::CutEdge& edge : flow.cut) {
    out.cut.push_back({edge.is_node() ? "compute of " + EndName(problem, edge.from)
                                      : "link " + EndName(problem, edge.from) + " -> " +
                                            EndName(problem, edge.to),
                       edge.capacity});
  }
  for (int node = 0; node < inputs.problem.num_nodes(); ++node) {
    Explanation::NodeUse use = UseOf(parts, node, problem, placement, flow);
    if (use.stages == 0) continue;
    use.node = inputs.problem.nodes[static_cast<size_t>(node)].name;
    out.nodes.push_back(std::move(use));
  }
  std::ranges::stable_sort(out.nodes, std::ranges::greater(), &Explanation::NodeUse::busy);
  MR_ASSIGN_OR_RETURN(out.one_more, TryOneMore(inputs, plan, options));
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
    out += fmt::format("  {:>5.1f} %  {:>12.1f} of {:>12.1f}  {}{}{}\n", 100 * use.busy,
                       use.tokens_per_s, use.capacity, Printable(use.node),
                       use.stages > 1 ? fmt::format(", {} stages", use.stages) : "",
                       use.bottleneck ? "  (bottleneck)" : "");
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
                     {"stages", use.stages},
                     {"busy", use.busy},
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
