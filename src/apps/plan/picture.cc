// The drawing of a plan: a row per stage, layers from left to right, flow as lines between bars,
// and KV that is handed over from prefill to decode as dashed arrows.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/plan/report.h"
#include "plan/io/plan_yaml.h"
#include "plan/rank_plans.h"
#include "sim/report/svg.h"

namespace millrace::apps {
namespace {

constexpr double kLabelWidth = 190, kChartWidth = 640, kRight = 160;
constexpr double kRowHeight = 30, kBarHeight = 18, kTop = 46;
constexpr double kLineMax = 9, kLineMin = 0.8, kMoveMax = 4;
constexpr const char* kColours[] = {"#4c78a8", "#f58518", "#54a24b", "#b279a2",
                                    "#e45756", "#72b7b2", "#9d755d", "#eeca3b"};

double HeightOf(const Plan& plan) { return kRowHeight * static_cast<double>(plan.stages.size()); }

class Drawing {
 public:
  Drawing(const Plan& plan, const ClusterSpec& cluster)
      : plan_(plan),
        cluster_(cluster),
        order_(StageOrder(plan)),
        row_(plan.stages.size()),
        svg_(static_cast<int>(kLabelWidth + kChartWidth + kRight),
             static_cast<int>(kTop + HeightOf(plan) + 24)) {
    for (const PlanEdge& edge : plan.edges) {
      if (!edge.from) entering_[edge.phase] += edge.tokens_per_s;
    }
    roles_ = plan::HasRoles(plan);
    for (size_t i = 0; i < order_.size(); ++i) row_[order_[i]] = i;
    for (const StagePlan& stage : plan.stages) {
      colours_.emplace(Device(stage), kColours[colours_.size() % std::size(kColours)]);
    }
  }

  std::string Draw() {
    svg_.Add(
        "<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" "
        "markerUnits=\"userSpaceOnUse\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\">"
        "<path d=\"M0 0 L8 4 L0 8 z\" fill=\"#c0392b\"/></marker></defs>\n");
    svg_.Text(8, 18,
              fmt::format("{} on {}: {:.1f} tokens/s of at most {:.1f}", plan_.model, plan_.cluster,
                          plan_.tokens_per_s, plan_.tokens_per_s_bound));
    for (int quarter = 0; quarter <= 4; ++quarter) {
      const int layer = plan_.num_layers * quarter / 4;
      svg_.Line(X(layer), kTop - 6, X(layer), kTop + HeightOf(plan_) + 8, "#ddd");
      svg_.Text(X(layer), kTop - 10, quarter == 0 ? "layer 0" : fmt::to_string(layer), 12,
                sim::Svg::Anchor::kMiddle);
    }
    for (const PlanEdge& edge : plan_.edges) {
      edge.phase == EdgePhase::kHandOver ? Move(edge) : Edge(edge);
    }
    const auto flows = StageFlows(plan_);
    for (size_t i : order_) Stage(i, flows[i]);
    return svg_.Finish();
  }

 private:
  std::string Device(const StagePlan& stage) const {
    return cluster_.nodes[static_cast<size_t>(stage.nodes.front())].device;
  }
  double X(int layer) const { return kLabelWidth + kChartWidth * layer / plan_.num_layers; }
  double Y(size_t stage) const {
    return kTop + kRowHeight * static_cast<double>(row_[stage]) + kRowHeight / 2;
  }

  void Stage(size_t i, double flow) {
    const StagePlan& stage = plan_.stages[i];
    const double y = Y(i);
    svg_.Text(8, y + 4, StageName(stage, cluster_) + " (" + Device(stage) + ")");
    svg_.Rect(X(stage.layers.begin), y - kBarHeight / 2,
              X(stage.layers.end) - X(stage.layers.begin), kBarHeight, colours_.at(Device(stage)),
              3);
    svg_.Text(
        kLabelWidth + kChartWidth + 8, y + 4,
        fmt::format("[{}, {})  {:.0f}/s{}", stage.layers.begin, stage.layers.end, flow,
                    roles_ ? fmt::format("  {}", plan::RoleName(stage.role)) : std::string()));
  }

  // From the end of one bar to the layer where the next one continues.
  void Edge(const PlanEdge& edge) {
    if (!edge.from || !edge.to) return;
    const auto from = static_cast<size_t>(*edge.from), to = static_cast<size_t>(*edge.to);
    const double x = X(plan_.stages[from].layers.end);
    const double share = Share(edge, edge.phase);
    svg_.Add(fmt::format(
        "<path d=\"M{0:.1f} {1:.1f} C{2:.1f} {1:.1f} {3:.1f} {4:.1f} {0:.1f} {4:.1f}\" "
        "fill=\"none\" stroke=\"#888\" stroke-opacity=\"0.7\" stroke-width=\"{5:.1f}\"/>\n",
        x, Y(from), x + 14, x - 14, Y(to), std::max(kLineMin, kLineMax * share)));
  }

  double Share(const PlanEdge& edge, EdgePhase of) const {
    const auto all = entering_.find(of);
    return all == entering_.end() || all->second <= 0
               ? 0
               : std::min(1.0, edge.tokens_per_s / all->second);
  }

  // KV, from the middle of the layers that both stages hold: a dashed line with an arrow.
  void Move(const PlanEdge& edge) {
    if (!edge.from || !edge.to) return;
    const auto from = static_cast<size_t>(*edge.from), to = static_cast<size_t>(*edge.to);
    const LayerRange a = plan_.stages[from].layers, b = plan_.stages[to].layers;
    const double middle =
        (X(std::max(a.begin, b.begin)) + X(std::min(a.end, b.end))) / 2 + 6 * (edge.to.value() % 5);
    const double down = Y(to) > Y(from) ? kBarHeight / 2 : -kBarHeight / 2;
    svg_.Add(fmt::format(
        "<path class=\"hand-over\" d=\"M{0:.1f} {1:.1f} L{0:.1f} {2:.1f}\" fill=\"none\" "
        "stroke=\"#c0392b\" stroke-opacity=\"0.6\" stroke-dasharray=\"5 3\" "
        "stroke-width=\"{3:.1f}\" marker-end=\"url(#arrow)\"/>\n",
        middle, Y(from) + down, Y(to) - down,
        std::max(kLineMin, kMoveMax * Share(edge, EdgePhase::kPrefill))));
  }

  const Plan& plan_;
  const ClusterSpec& cluster_;
  std::map<EdgePhase, double> entering_;  // tokens per second out of the coordinator
  bool roles_ = false;
  std::vector<size_t> order_, row_;
  std::map<std::string, const char*> colours_;
  sim::Svg svg_;
};

}  // namespace

std::string PlanSvg(const Plan& plan, const ClusterSpec& cluster) {
  return Drawing(plan, cluster).Draw();
}

}  // namespace millrace::apps
