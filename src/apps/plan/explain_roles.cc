#include "apps/plan/explain_roles.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "apps/plan/one_more.h"
#include "base/log.h"
#include "plan/io/plan_yaml.h"
#include "plan/roles/node_parts.h"
#include "plan/roles/role_estimate.h"
#include "plan/roles/role_search.h"

namespace millrace::apps {
namespace {

constexpr size_t kNodesShown = 16;
constexpr int kEvaluations = 150;  // of the search with one more node
constexpr int kPoolIterations = 300;

// How busy the parts of the nodes are at the estimate's rate.
struct PartUse {
  int part = 0;
  StageRole role = StageRole::kBoth;
  double busy = 0;
};

void AddUse(const plan::GoodputProblem& p, const plan::PoolFlow& pool, StageRole role,
            double requests_per_s, std::vector<PartUse>& out) {
  for (const plan::PoolFlow::Stage& stage : pool.stages) {
    const plan::FlowNode& node = p.flow.nodes[static_cast<size_t>(stage.node)];
    const auto k = static_cast<size_t>(stage.layers) - 1;
    const double tokens = role == StageRole::kPrefill  ? p.prompt_tokens
                          : role == StageRole::kDecode ? p.output_tokens
                                                       : p.prompt_tokens + p.output_tokens;
    const double rate = role == StageRole::kPrefill  ? node.prefill_tokens_per_s[k]
                        : role == StageRole::kDecode ? node.decode_tokens_per_s[k]
                                                     : node.tokens_per_s[k];
    out.push_back({stage.node, role, requests_per_s * stage.share * tokens / rate});
  }
}

std::vector<PartUse> UseOf(const plan::GoodputProblem& problem,
                           const plan::RoleEstimate& estimate) {
  std::vector<PartUse> out;
  for (const plan::RoleUnit& unit : estimate.units) {
    const double rate = unit.estimate.requests_per_s;
    const bool apart = !unit.prefill.stages.empty();
    AddUse(problem, unit.prefill, StageRole::kPrefill, rate, out);
    AddUse(problem, unit.decode, apart ? StageRole::kDecode : StageRole::kBoth, rate, out);
  }
  return out;
}

std::string RolesText(const std::set<StageRole>& roles) {
  std::vector<std::string_view> names;
  for (const StageRole role : {StageRole::kPrefill, StageRole::kDecode, StageRole::kBoth}) {
    if (roles.contains(role)) names.push_back(plan::RoleName(role));
  }
  return fmt::format("{}", fmt::join(names, " + "));
}

// The busiest first.
std::vector<RoleExplanation::NodeUse> NodesOf(const plan::FlowProblem& nodes,
                                              const plan::NodeParts& parts,
                                              const std::vector<PartUse>& uses) {
  std::map<int, RoleExplanation::NodeUse> by_node;
  std::map<int, std::set<StageRole>> roles;
  for (const PartUse& use : uses) {
    const int node = parts.NodeOf(use.part);
    by_node[node].node = nodes.nodes[static_cast<size_t>(node)].name;
    by_node[node].busy += parts.ShareOf(use.part) * use.busy;
    roles[node].insert(use.role);
  }
  std::vector<RoleExplanation::NodeUse> out;
  for (auto& [node, use] : by_node) {
    use.roles = RolesText(roles[node]);
    out.push_back(std::move(use));
  }
  std::ranges::stable_sort(out, std::ranges::greater(), &RoleExplanation::NodeUse::busy);
  return out;
}

void AddRole(const plan::RoleProblem& problem, const plan::NodeParts& parts,
             const plan::RoleEstimate& estimate, const std::vector<PartUse>& uses, StageRole role,
             RoleExplanation& out) {
  const plan::RolePlacement placement = parts.Placed();
  std::set<int> nodes;
  for (int part = 0; part < parts.count(); ++part) {
    const auto at = static_cast<size_t>(part);
    if (placement.roles[at] == role && placement.layers[at].size() > 0) {
      nodes.insert(parts.NodeOf(part));
    }
  }
  if (nodes.empty()) return;
  RoleExplanation::Role found{.role = role, .nodes = static_cast<int>(nodes.size())};
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
  for (const PartUse& use : uses) {
    if (use.role == role) found.busiest = std::max(found.busiest, use.busy);
  }
  out.roles.push_back(found);
}

// The roles of the last node in the best division, and that division's rate.
RoleExplanation::OneMore TryKind(const plan::GoodputProblem& larger, const std::string& kind,
                                 const Plan& plan, double requests_per_s,
                                 const RoleExplainOptions& options) {
  RoleExplanation::OneMore best{.kind = kind, .requests_per_s = requests_per_s};
  const int last = larger.flow.num_nodes() - 1;
  for (const Plan& with : WithStagesOnLast(
           larger.flow, plan, {StageRole::kPrefill, StageRole::kDecode, StageRole::kBoth})) {
    const plan::NodeParts parts(larger.flow, with);
    const plan::GoodputProblem of_parts = parts.Divide(larger);
    const double rate = EstimateRoles(RolesOf(of_parts), parts.Placed()).requests_per_s;
    if (rate <= best.requests_per_s) continue;
    std::set<StageRole> roles;
    for (const int part : parts.PartsOf(last)) {
      roles.insert(parts.Placed().roles[static_cast<size_t>(part)]);
    }
    best.requests_per_s = rate;
    best.roles = RolesText(roles);
  }
  const plan::RoleProblem problem = RolesOf(larger);
  plan::RoleSearchOptions search{.evaluations = kEvaluations, .pool_iterations = kPoolIterations};
  search.keep = 1;
  const Time begin = options.clock->Now();
  search.stop = [&] { return (options.clock->Now() - begin).seconds() > options.seconds_per_kind; };
  for (const plan::RoleCandidate& c : SearchRoles(problem, search)) {
    if (c.estimate.requests_per_s <= best.requests_per_s) continue;
    best.requests_per_s = c.estimate.requests_per_s;
    best.roles = plan::RoleName(c.placement.roles.back());
  }
  best.added = best.requests_per_s - requests_per_s;
  return best;
}

}  // namespace

RoleExplanation ExplainRoles(const PlanInputs& inputs, const Plan& plan,
                             const RoleExplainOptions& options) {
  const plan::GoodputProblem goodput = WithLimits(*inputs.goodput, inputs.limits);
  const plan::NodeParts parts(goodput.flow, plan);
  const plan::GoodputProblem of_parts = parts.Divide(goodput);
  const plan::RoleProblem problem = RolesOf(of_parts);
  const plan::RoleEstimate estimate = EstimateRoles(problem, parts.Placed());
  RoleExplanation out;
  out.requests_per_s = estimate.requests_per_s;
  out.limited = inputs.limits.any();
  out.limit = estimate.limit.empty() ? "its limits, which it keeps at no rate" : estimate.limit;
  const std::vector<PartUse> uses = UseOf(of_parts, estimate);
  out.nodes = NodesOf(goodput.flow, parts, uses);
  AddRole(problem, parts, estimate, uses, StageRole::kPrefill, out);
  AddRole(problem, parts, estimate, uses, StageRole::kDecode, out);
  const auto least =
      std::ranges::min_element(out.roles, {}, &RoleExplanation::Role::requests_per_s);
  if (least != out.roles.end()) least->bottleneck = true;
  AddRole(problem, parts, estimate, uses, StageRole::kBoth, out);
  std::set<std::string> seen;
  for (int node = 0; node < goodput.flow.num_nodes(); ++node) {
    const std::string kind = NodeLabel(goodput.flow, node);
    if (goodput.flow.nodes[static_cast<size_t>(node)].max_layers() == 0) continue;
    if (!seen.insert(kind).second) continue;
    if (options.progress) options.progress(kind);
    out.one_more.push_back(
        TryKind(WithOneMore(goodput, node), kind, plan, out.requests_per_s, options));
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
    out += fmt::format("  {:>5.1f} %  {:<8} {}\n", 100 * use.busy, use.roles, Printable(use.node));
  }
  for (const UnusedNode& unused : plan.unused) {
    out += fmt::format("  unused   {}: {}\n",
                       Printable(cluster.nodes[static_cast<size_t>(unused.node)].name, 40),
                       Printable(unused.reason));
  }
  out += "\nOne more node of a kind would add at least:\n";
  for (const RoleExplanation::OneMore& more : explanation.one_more) {
    out += fmt::format("  {:>8.3g} requests/s  {}{}\n", more.added, Printable(more.kind),
                       more.added > 0 ? fmt::format(", for {}", more.roles) : "");
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
    nodes.push_back({{"node", use.node}, {"role", use.roles}, {"busy", use.busy}});
  }
  for (const auto& one : explanation.one_more) {
    more.push_back({{"kind", one.kind},
                    {"role", one.roles.empty() ? Json() : Json(one.roles)},
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
