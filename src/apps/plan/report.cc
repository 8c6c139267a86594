#include "apps/plan/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "apps/common/text_table.h"
#include "base/log.h"
#include "plan/io/plan_yaml.h"
#include "sim/cluster/cluster_sim.h"

namespace millrace::apps {
namespace {

constexpr size_t kUnusedLinesMax = 12;

double Gap(const Plan& plan) {
  return plan.tokens_per_s_bound > 0 ? 1 - plan.tokens_per_s / plan.tokens_per_s_bound : 0;
}

}  // namespace

std::string LayerBar(LayerRange layers, int num_layers, int columns) {
  std::string bar(static_cast<size_t>(columns), '.');
  const auto cell = [&](int layer) { return int64_t{layer} * columns / std::max(1, num_layers); };
  const int64_t begin = std::clamp<int64_t>(cell(layers.begin), 0, columns - 1);
  const int64_t end = std::clamp<int64_t>(cell(layers.end), begin + 1, columns);
  std::fill(bar.begin() + begin, bar.begin() + end, '#');
  return bar;
}

std::vector<size_t> StageOrder(const Plan& plan) {
  std::vector<size_t> order(plan.stages.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {
      return std::pair(plan.stages[i].role, plan.stages[i].layers);
    };
    return key(a) < key(b);
  });
  return order;
}

std::vector<double> StageFlows(const Plan& plan) {
  std::vector<double> flows(plan.stages.size());
  for (const PlanEdge& edge : plan.edges) {
    if (!edge.to || edge.phase == EdgePhase::kHandOver) continue;
    flows[static_cast<size_t>(*edge.to)] += edge.tokens_per_s;
  }
  return flows;
}

std::string StageName(const StagePlan& stage, const ClusterSpec& cluster) {
  std::vector<std::string> names;
  for (NodeIndex node : stage.nodes) {
    names.push_back(Printable(cluster.nodes[static_cast<size_t>(node)].name, 40));
  }
  return fmt::format("{}", fmt::join(names, " + "));
}

std::string PlanText(const Plan& plan, const ClusterSpec& cluster, int columns) {
  const auto flows = StageFlows(plan);
  std::vector<std::vector<std::string>> rows = {
      {"node", fmt::format("layers 0{:>{}}", plan.num_layers, columns - 8), "holds", "tokens/s"}};
  for (size_t i : StageOrder(plan)) {
    const StagePlan& stage = plan.stages[i];
    rows.push_back({StageName(stage, cluster), LayerBar(stage.layers, plan.num_layers, columns),
                    fmt::format("[{}, {})", stage.layers.begin, stage.layers.end),
                    fmt::format("{:.1f}", flows[i])});
    if (stage.tensor_parallel > 1)
      rows.back().push_back(fmt::format("TP{}", stage.tensor_parallel));
    if (stage.role != StageRole::kBoth) rows.back().emplace_back(plan::RoleName(stage.role));
  }
  return TextTable(rows, "lllr");
}

double PricePerHour(const Plan& plan, const ClusterSpec& cluster) {
  double price = 0;
  for (const NodeIndex node : sim::UsedNodes(plan)) {
    price += cluster.nodes[static_cast<size_t>(node)].price_usd_per_hour;
  }
  return price;
}

std::string PlanSummary(const plan::PlanOutcome& outcome, const ClusterSpec& cluster,
                        const std::string& rates_from, const std::string& steps_from) {
  const Plan& plan = outcome.plan;
  const double price = PricePerHour(plan, cluster);
  std::string out = fmt::format("{} on {}: {} layers, {} of {} nodes used\n",
                                Printable(plan.model, 80), Printable(plan.cluster, 80),
                                plan.num_layers, sim::UsedNodes(plan).size(), cluster.nodes.size());
  out += fmt::format("  flow   {:>12.3f} tokens/s, prompt and output together, found by {}\n",
                     plan.tokens_per_s, outcome.method);
  out += fmt::format("  bound  {:>12.3f} tokens/s, {}\n", plan.tokens_per_s_bound,
                     outcome.bound_method);
  out += outcome.proved_optimal() ? "  gap    none: the plan is optimal\n"
                                  : fmt::format("  gap    {:>12.2f} %\n", 100 * Gap(plan));
  if (price > 0) {
    out += fmt::format("  price  {:>12.2f} USD/h, {:.3f} USD per million tokens at full load\n",
                       price, price / 3600 / plan.tokens_per_s * 1e6);
  }
  out += fmt::format("  rates from {}\n", rates_from);
  if (!steps_from.empty()) out += fmt::format("  steps {}\n", steps_from);
  out += "\n" + PlanText(plan, cluster);
  for (size_t i = 0; i < plan.unused.size(); ++i) {
    if (i == kUnusedLinesMax) {
      out += fmt::format("and {} more unused\n", plan.unused.size() - i);
      break;
    }
    const UnusedNode& unused = plan.unused[i];
    out += fmt::format("unused {}: {}\n",
                       Printable(cluster.nodes[static_cast<size_t>(unused.node)].name, 40),
                       Printable(unused.reason));
  }
  return out;
}

Json PlanJson(const plan::PlanOutcome& outcome, const ClusterSpec& cluster) {
  const Plan& plan = outcome.plan;
  const auto end = [](const std::optional<int>& stage) {
    return stage ? Json(*stage) : Json("coordinator");
  };
  const auto flows = StageFlows(plan);
  Json stages = Json::array(), edges = Json::array(), unused = Json::array();
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    Json nodes = Json::array();
    for (NodeIndex node : stage.nodes) {
      nodes.push_back(cluster.nodes[static_cast<size_t>(node)].name);
    }
    stages.push_back({{"nodes", nodes},
                      {"begin", stage.layers.begin},
                      {"end", stage.layers.end},
                      {"role", plan::RoleName(stage.role)},
                      {"tensor_parallel", stage.tensor_parallel},
                      {"tokens_per_s", flows[i]}});
  }
  for (const PlanEdge& edge : plan.edges) {
    edges.push_back({{"from", end(edge.from)},
                     {"to", end(edge.to)},
                     {"tokens_per_s", edge.tokens_per_s},
                     {"phase", plan::PhaseName(edge.phase)}});
  }
  for (const UnusedNode& node : plan.unused) {
    unused.push_back(
        {{"node", cluster.nodes[static_cast<size_t>(node.node)].name}, {"reason", node.reason}});
  }
  return {{"model", plan.model},
          {"cluster", plan.cluster},
          {"layers", plan.num_layers},
          {"partial_inference", plan.partial_inference},
          {"tokens_per_s", plan.tokens_per_s},
          {"tokens_per_s_bound", plan.tokens_per_s_bound},
          {"gap", Gap(plan)},
          {"method", outcome.method},
          {"bound_method", outcome.bound_method},
          {"elapsed_s", outcome.elapsed_s},
          {"stages", stages},
          {"edges", edges},
          {"unused", unused}};
}

}  // namespace millrace::apps
