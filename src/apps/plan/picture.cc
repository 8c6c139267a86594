// The drawing of a plan: a row per stage, layers from left to right, flow as lines between bars,
// and KV that is handed over from prefill to decode as dashed arrows.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "apps/plan/report.h"
#include "plan/io/plan_yaml.h"
#include "plan/rank_plans.h"

namespace millrace::apps {
namespace {

constexpr double kLabelWidth = 190, kChartWidth = 640, kRight = 160;
constexpr double kRowHeight = 30, kBarHeight = 18, kTop = 46;
constexpr double kLineMax = 9, kLineMin = 0.8, kMoveMax = 4;
constexpr const char* kColours[] = {"#4c78a8", "#f58518", "#54a24b", "#b279a2",
                                    "#e45756", "#72b7b2", "#9d755d", "#eeca3b"};

std::string Escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      default: out += c;
    }
  }
  return out;
}

class Drawing {
 public:
  Drawing(const Plan& plan, const ClusterSpec& cluster)
      : plan_(plan), cluster_(cluster), order_(plan.stages.size()), row_(plan.stages.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      const auto key = [&](size_t i) {
        return std::pair(plan.stages[i].role, plan.stages[i].layers);
      };
      return key(a) < key(b);
    });
    for (const PlanEdge& edge : plan.edges) {
      if (!edge.from) entering_[edge.phase] += edge.tokens_per_s;
    }
    roles_ = plan::HasRoles(plan);
    for (size_t i = 0; i < order_.size(); ++i) row_[order_[i]] = i;
    for (const StagePlan& stage : plan.stages) {
      colours_.emplace(Device(stage), kColours[colours_.size() % std::size(kColours)]);
    }
  }

  std::string Svg() {
    const double height = kTop + kRowHeight * static_cast<double>(order_.size()) + 24;
    const double width = kLabelWidth + kChartWidth + kRight;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" viewBox=\"0 "
        "0 "
        "{:.0f} {:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        "<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" "
        "markerUnits=\"userSpaceOnUse\" markerWidth=\"8\" markerHeight=\"8\" orient=\"auto\">"
        "<path d=\"M0 0 L8 4 L0 8 z\" fill=\"#c0392b\"/></marker></defs>\n",
        width, height, width, height);
    Text(8, 18, "start",
         fmt::format("{} on {}: {:.1f} tokens/s of at most {:.1f}", plan_.model, plan_.cluster,
                     plan_.tokens_per_s, plan_.tokens_per_s_bound));
    for (int quarter = 0; quarter <= 4; ++quarter) {
      const int layer = plan_.num_layers * quarter / 4;
      out_ += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\" stroke=\"#ddd\"/>\n",
          X(layer), kTop - 6, height - 16);
      Text(X(layer), kTop - 10, "middle", quarter == 0 ? "layer 0" : fmt::format("{}", layer));
    }
    for (const PlanEdge& edge : plan_.edges) {
      edge.phase == EdgePhase::kHandOver ? Move(edge) : Edge(edge);
    }
    const auto flows = StageFlows(plan_);
    for (size_t i : order_) Stage(i, flows[i]);
    return out_ + "</svg>\n";
  }

 private:
  std::string Device(const StagePlan& stage) const {
    return cluster_.nodes[static_cast<size_t>(stage.nodes.front())].device;
  }
  double X(int layer) const { return kLabelWidth + kChartWidth * layer / plan_.num_layers; }
  double Y(size_t stage) const {
    return kTop + kRowHeight * static_cast<double>(row_[stage]) + kRowHeight / 2;
  }

  void Text(double x, double y, const char* anchor, const std::string& text) {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y,
                        anchor, Escaped(text));
  }

  void Stage(size_t i, double flow) {
    const StagePlan& stage = plan_.stages[i];
    const double y = Y(i);
    Text(8, y + 4, "start", StageName(stage, cluster_) + " (" + Device(stage) + ")");
    out_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" rx=\"3\" "
        "fill=\"{}\"/>\n",
        X(stage.layers.begin), y - kBarHeight / 2, X(stage.layers.end) - X(stage.layers.begin),
        kBarHeight, colours_.at(Device(stage)));
    Text(kLabelWidth + kChartWidth + 8, y + 4, "start",
         fmt::format("[{}, {})  {:.0f}/s{}", stage.layers.begin, stage.layers.end, flow,
                     roles_ ? fmt::format("  {}", plan::RoleName(stage.role)) : std::string()));
  }

  // From the end of one bar to the layer where the next one continues.
  void Edge(const PlanEdge& edge) {
    if (!edge.from || !edge.to) return;
    const auto from = static_cast<size_t>(*edge.from), to = static_cast<size_t>(*edge.to);
    const double x = X(plan_.stages[from].layers.end);
    const double share = Share(edge, edge.phase);
    out_ += fmt::format(
        "<path d=\"M{0:.1f} {1:.1f} C{2:.1f} {1:.1f} {3:.1f} {4:.1f} {0:.1f} {4:.1f}\" "
        "fill=\"none\" stroke=\"#888\" stroke-opacity=\"0.7\" stroke-width=\"{5:.1f}\"/>\n",
        x, Y(from), x + 14, x - 14, Y(to), std::max(kLineMin, kLineMax * share));
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
    out_ += fmt::format(
        "<path class=\"hand-over\" d=\"M{0:.1f} {1:.1f} L{0:.1f} {2:.1f}\" fill=\"none\" "
        "stroke=\"#c0392b\" stroke-opacity=\"0.6\" stroke-dasharray=\"5 3\" "
        "stroke-width=\"{3:.1f}\" marker-end=\"url(#arrow)\"/>\n",
        middle, Y(from) + down, Y(to) - down,
        std::max(kLineMin, kMoveMax * Share(edge, EdgePhase::kPrefill)));
  }

  const Plan& plan_;
  const ClusterSpec& cluster_;
  std::map<EdgePhase, double> entering_;  // tokens per second out of the coordinator
  bool roles_ = false;
  std::vector<size_t> order_, row_;
  std::map<std::string, const char*> colours_;
  std::string out_;
};

}  // namespace

std::string PlanSvg(const Plan& plan, const ClusterSpec& cluster) {
  return Drawing(plan, cluster).Svg();
}

}  // namespace millrace::apps
