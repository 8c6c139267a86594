#include "apps/plan/explain_roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "apps/plan/explain.h"
#include "apps/plan/one_more.h"
#include "base/log.h"
#include "plan/io/plan_yaml.h"
#include "plan/roles/after_loss.h"
#include "plan/roles/role_estimate.h"
#include "plan/roles/role_search.h"

namespace millrace::apps {
namespace {

constexpr size_t kNodesShown = 16;
constexpr int kEvaluations = 150;  // of the search with one more node
constexpr int kPoolIterations = 300;

int CountNodes(const plan::RolePlacement& placement, StageRole role) {
  int count = 0;
  for (size_t i = 0; i < placement.roles.size(); ++i) {
    count += placement.roles[i] == role && placement.layers[i].size() > 0 ? 1 : 0;
  }
  return count;
}

// Shares of the nodes' time at the estimate's rate.
void AddUse(const plan::RoleProblem& problem, const plan::PoolFlow& pool, StageRole role,
            double requests_per_s, std::vector<RoleExplanation::NodeUse>& out) {
  const plan::GoodputProblem& p = *problem.goodput;
  for (const plan::PoolFlow::Stage& stage : pool.stages) {
    const plan::FlowNode& node = p.flow.nodes[static_cast<size_t>(stage.node)];
    const auto k = static_cast<size_t>(stage.layers) - 1;
    const double tokens = role == StageRole::kPrefill  ? p.prompt_tokens
                          : role == StageRole::kDecode ? p.output_tokens
                                                       : p.prompt_tokens + p.output_tokens;
    const double rate = role == StageRole::kPrefill  ? node.prefill_tokens_per_s[k]
                        : role == StageRole::kDecode ? node.decode_tokens_per_s[k]
                                                     : node.tokens_per_s[k];
    out.push_back({node.name, role, requests_per_s * stage.share * tokens / rate});
  }
}

void AddRole(const plan::RoleProblem& problem, const plan::RolePlacement& placement,
             const plan::RoleEstimate& estimate, StageRole role, RoleExplanation& out) {
  RoleExplanation::Role found{.role = role, .nodes = CountNodes(placement, role)};
  if (found.nodes == 0) return;
  if (role == StageRole::kBoth) {
    // Their requests pass no other role.
    for (const plan::RoleUnit& unit : estimate.units) {
      if (unit.prefill.stages.empty()) found.requests_per_s += unit.estimate.requests_per_s;
    }
  }
  for (int domain = 0; role != StageRole::kBoth && domain < problem.num_domains; ++domain) {
    const plan::Placement pool = PoolOf(problem, placement, role, domain);
    found.requests_per_s +=
        role == StageRole::kPrefill ? PrefillAlone(problem, pool) : DecodeAlone(problem, pool);
  }
  for (const RoleExplanation::NodeUse& use : out.nodes) {
    if (use.role == role) found.busiest = std::max(found.busiest, use.busy);
  }
  out.roles.push_back(found);
}

// The role of the last node in the best division, and that division's rate.
RoleExplanation::OneMore TryKind(const plan::GoodputProblem& larger, const std::string& kind,
                                 const plan::RolePlacement& placement, double requests_per_s,
                                 const RoleExplainOptions& options) {
  const plan::RoleProblem problem = RolesOf(larger);
  RoleExplanation::OneMore best{.kind = kind, .requests_per_s = requests_per_s};
  const auto offer = [&](const plan::RolePlacement& candidate, double rate) {
    if (rate <= best.requests_per_s) return;
    best.requests_per_s = rate;
    best.role = candidate.roles.back();
  };
  // The plan as it is, with a copy of each stage that the new node can hold.
  for (const StageRole role : {StageRole::kPrefill, StageRole::kDecode, StageRole::kBoth}) {
    std::set<LayerRange> ranges(placement.layers.begin(), placement.layers.end());
    for (const LayerRange& layers : ranges) {
      if (layers.size() == 0 || layers.size() > larger.flow.nodes.back().max_layers()) continue;
      plan::RolePlacement candidate = placement;
      candidate.layers.push_back(layers);
      candidate.roles.push_back(role);
      offer(candidate, EstimateRoles(problem, candidate).requests_per_s);
    }
  }
  plan::RoleSearchOptions search{.evaluations = kEvaluations, .pool_iterations = kPoolIterations};
  search.keep = 1;
  const Time begin = options.clock->Now();
  search.stop = [&] { return (options.clock->Now() - begin).seconds() > options.seconds_per_kind; };
  for (const plan::RoleCandidate& c : SearchRoles(problem, search)) {
    offer(c.placement, c.estimate.requests_per_s);
  }
  best.added = best.requests_per_s - requests_per_s;
  return best;
}

}  // namespace

Result<RoleExplanation> ExplainRoles(const PlanInputs& inputs, const Plan& plan,
                                     const RoleExplainOptions& options) {
  const plan::GoodputProblem goodput = WithLimits(*inputs.goodput, inputs.limits);
  const plan::RoleProblem problem = RolesOf(goodput);
  const auto placement = PlacementOf(problem, plan);
  if (!placement) return SeveralStagesPerNode();
  const plan::RoleEstimate estimate = EstimateRoles(problem, *placement);
  RoleExplanation out;
  out.requests_per_s = estimate.requests_per_s;
  out.limited = inputs.limits.any();
  out.limit = estimate.limit.empty() ? "its limits, which it keeps at no rate" : estimate.limit;
  for (const plan::RoleUnit& unit : estimate.units) {
    const double rate = unit.estimate.requests_per_s;
    const bool apart = !unit.prefill.stages.empty();
    AddUse(problem, unit.prefill, StageRole::kPrefill, rate, out.nodes);
    AddUse(problem, unit.decode, apart ? StageRole::kDecode : StageRole::kBoth, rate, out.nodes);
  }
  std::ranges::stable_sort(out.nodes, std::ranges::greater(), &RoleExplanation::NodeUse::busy);
  AddRole(problem, *placement, estimate, StageRole::kPrefill, out);
  AddRole(problem, *placement, estimate, StageRole::kDecode, out);
  const auto least =
      std::ranges::min_element(out.roles, {}, &RoleExplanation::Role::requests_per_s);
  if (least != out.roles.end()) least->bottleneck = true;
  AddRole(problem, *placement, estimate, StageRole::kBoth, out);
  std::set<std::string> seen;
  for (int node = 0; node < goodput.flow.num_nodes(); ++node) {
    const std::string kind = NodeLabel(goodput.flow, node);
    if (goodput.flow.nodes[static_cast<size_t>(node)].max_layers() == 0) continue;
    if (!seen.insert(kind).second) continue;
    if (options.progress) options.progress(kind);
    out.one_more.push_back(
        TryKind(WithOneMore(goodput, node), kind, *placement, out.requests_per_s, options));
  }
  std::ranges::stable_sort(out.one_more, std::ranges::greater(), &RoleExplanation::OneMore::added);
  return out;
}

std::string RoleExplanationText(const RoleExplanation& explanation, const Plan& plan,
                                const ClusterSpec& cluster) {
  std::string out = fmt::format(
      "{:.3g} requests/s {} by the estimate, bound by {}\n\n", explanation.requests_per_s,
      explanation.limited ? "within the limits" : "without limits on latency",
      Printable(explanation.limit));
  for (const RoleExplanation::Role& role : explanation.roles) {
    out += fmt::format(
        "{:<8} on {} of the nodes: {:.3g} requests/s alone; the busiest is {:.0f} % busy{}\n",
        plan::RoleName(role.role), role.nodes, role.requests_per_s, 100 * role.busiest,
        role.bottleneck ? "  (bottleneck)" : "");
  }
  out += "\nNode utilisation:\n";
  for (size_t i = 0; i < explanation.nodes.size(); ++i) {
    const RoleExplanation::NodeUse& use = explanation.nodes[i];
    if (i == kNodesShown) {
      out += fmt::format("  and {} less busy\n", explanation.nodes.size() - i);
      break;
    }
    out += fmt::format("  {:>5.1f} %  {:<8} {}\n", 100 * use.busy, plan::RoleName(use.role),
                       Printable(use.node));
  }
  for (const UnusedNode& unused : plan.unused) {
    out += fmt::format("  unused   {}: {}\n",
                       Printable(cluster.nodes[static_cast<size_t>(unused.node)].name, 40),
                       Printable(unused.reason));
  }
  out += "\nOne more node of a kind would add at least:\n";
  for (const RoleExplanation::OneMore& more : explanation.one_more) {
    out += fmt::format("  {:>8.3g} requests/s  {}{}\n", more.added, Printable(more.kind),
                       more.added > 0 ? fmt::format(", for {}", plan::RoleName(more.role)) : "");
  }
  return out;
}

Json RoleExplanationJson(const RoleExplanation& explanation) {
  Json roles = Json::array(), nodes = Json::array(), more = Json::array();
  for (const auto& role : explanation.roles) {
    roles.push_back({{"role", plan::RoleName(role.role)},
                     {"nodes", role.nodes},
                     {"requests_per_s", role.requests_per_s},
                     {"busiest", role.busiest},
                     {"bottleneck", role.bottleneck}});
  }
  for (const auto& use : explanation.nodes) {
    nodes.push_back({{"node", use.node}, {"role", plan::RoleName(use.role)}, {"busy", use.busy}});
  }
  for (const auto& one : explanation.one_more) {
    more.push_back({{"kind", one.kind},
                    {"role", plan::RoleName(one.role)},
                    {"requests_per_s", one.requests_per_s},
                    {"added", one.added}});
  }
  return {{"requests_per_s", explanation.requests_per_s},
          {"within_limits", explanation.limited},
          {"limit", explanation.limit},
          {"roles", roles},
          {"nodes", nodes},
          {"one_more", more}};
}

}  // namespace millrace::apps
