#include "apps/cluster/cluster_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "apps/plan/report.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr std::string_view kCoordinator = "coordinator", kHandOver = "hand-over";
// At least; longer names widen the column. Edges are indented by an arrow.
constexpr size_t kNameWidth = 20, kArrowWidth = 5;
constexpr int kBarWidth = 12;
constexpr double kSecondsMin = 1e-3;  // between two looks
// Edges that are shown one by one under a stage; further ones are one line. With more than
// kStagesApart lines of stages, all edges of a stage are one line.
constexpr size_t kNextMax = 6;

struct EdgeSum {
  double planned = 0;  // tokens per second
  double tokens = 0;   // measured; per second if there is an earlier view
  double bytes = 0, seconds = 0;

  EdgeSum& operator+=(const EdgeSum& other) {
    planned += other.planned;
    tokens += other.tokens;
    bytes += other.bytes;
    seconds += other.seconds;
    return *this;
  }
};

EdgeSum SumOf(const EdgeView& edge) {
  return {.planned = edge.planned_tokens_per_s,
          .tokens = static_cast<double>(edge.tokens),
          .bytes = static_cast<double>(edge.bytes.value_or(0)),
          .seconds = edge.seconds.value_or(0)};
}

// A row: stages of the same role and layers.
struct Row {
  std::string name;
  std::string role;
  LayerRange layers;
  size_t stages = 0, up = 0;
  int64_t running = 0, waiting = 0, blocks = 0, used = 0;
};

// An end of an edge: a row, the coordinator, or a worker that no stage of the plan has.
struct EdgeEnd {
  std::optional<size_t> row;
  std::string name;
  friend auto operator<=>(const EdgeEnd&, const EdgeEnd&) = default;
};
struct NextEdge {
  EdgeEnd to;
  std::string phase;
  friend auto operator<=>(const NextEdge&, const NextEdge&) = default;
};

// "0", "2.5", "155", "12.3k", "1.2M"
std::string Short(double value) {
  if (value < 0.05) return "0";
  if (value < 9.95) return fmt::format("{:.1f}", value);
  if (value < 9999.5) return fmt::format("{:.0f}", value);
  if (value < 999'950) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.1f}M", value / 1e6);
}

std::string ShareText(double part, double all) {
  return all > 0 ? fmt::format("{:.0f} %", 100 * part / all) : "";
}

std::string RoleTitle(const std::string& role) {
  if (role == "prefill") return "PREFILL";
  return role == "decode" ? "DECODE" : "PREFILL AND DECODE";
}

// "w01", "w01 (2 ranks)", "w01 +19"
std::string StageName(const StageView& stage, size_t index) {
  const std::string first = stage.workers.empty() ? "" : stage.workers.front();
  std::string name = first.empty() ? fmt::format("stage {}", index) : first;
  if (stage.workers.size() > 1) name += fmt::format(" ({} ranks)", stage.workers.size());
  return name;
}

class Picture {
 public:
  Picture(const ClusterView& view, const std::optional<EarlierView>& earlier)
      : rates_(earlier.has_value()) {
    for (const StageView& stage : view.stages) {
      layers_ = std::max(layers_, stage.layers.end);
    }
    AddStages(view.stages);
    if (earlier) {
      for (const EdgeView& edge : earlier->view.edges) {
        before_.insert_or_assign(std::tuple(edge.from, edge.to, edge.phase), &edge);
      }
    }
    for (const EdgeView& edge : view.edges) AddEdge(edge, earlier ? earlier->seconds : 0);
    FitNames();
  }

  std::string Text() {
    if (rows_.empty()) return "";
    out_ = fmt::format("{:<{}}{:<24}{:>5} {:>5}  {:>13}\n", "STAGE", width_, "LAYERS", "RUN",
                       "WAIT", "KV BLOCKS");
    out_ += fmt::format("{:<{}}{:<18}{:<20}{:>13}\n", "  -> NEXT", width_, "PLANNED", "MEASURED",
                        "KV SPEED");
    Put(std::string(kCoordinator));
    PutEdges({std::nullopt, std::string(kCoordinator)});
    const bool roles =
        std::ranges::any_of(rows_, [&](const Row& row) { return row.role != rows_.front().role; });
    for (const std::string_view role : {"prefill", "decode", "both"}) PutRole(role, roles);
    for (const auto& [end, next] : edges_) {  // of an earlier plan
      if (end.row || end.name == kCoordinator) continue;
      Put(end.name);
      PutEdges(end);
    }
    return out_ + "\n";
  }

 private:
  void AddStages(const std::vector<StageView>& stages) {
    std::map<std::tuple<std::string, LayerRange, size_t, size_t>, size_t> alike;
    for (size_t s = 0; s < stages.size(); ++s) {
      const StageView& stage = stages[s];
      const size_t apart = stages.size() > kStagesApart ? 0 : s;
      const auto at = alike.try_emplace(
          std::tuple(stage.role, stage.layers, stage.workers.size(), apart), rows_.size());
      if (at.second) {
        rows_.push_back({.name = StageName(stage, s), .role = stage.role, .layers = stage.layers});
      }
      const size_t index = at.first->second;
      Row& row = rows_[index];
      ++row.stages;
      row.up += stage.up ? 1 : 0;
      row.running += stage.running;
      row.waiting += stage.waiting;
      row.blocks += stage.kv_blocks;
      row.used += stage.kv_blocks_used;
      const bool named = !stage.workers.empty() && !stage.workers.front().empty();
      places_.try_emplace({stage.role, named ? stage.workers.front() : fmt::format("stage {}", s)},
                          index);
    }
    for (Row& row : rows_) {
      if (row.stages > 1) row.name += fmt::format(" +{}", row.stages - 1);
    }
  }

  // `role`: of the stage that this end of an edge is. Stages for both stand in.
  EdgeEnd EndOf(const std::string& name, const std::string& role) const {
    for (const std::string& each : {role, std::string("both")}) {
      const auto place = places_.find({each, name});
      if (place != places_.end()) return {place->second, ""};
    }
    return {std::nullopt, name};
  }

  void AddEdge(const EdgeView& edge, double seconds) {
    const bool hands_over = edge.phase == kHandOver;
    EdgeSum flow = SumOf(edge);
    if (rates_) {
      const auto found = before_.find(std::tuple(edge.from, edge.to, edge.phase));
      const EdgeSum before = SumOf(found == before_.end() ? EdgeView() : *found->second);
      // Counts that have become less began again with another plan.
      if (flow.tokens >= before.tokens) flow.tokens -= before.tokens;
      if (flow.bytes >= before.bytes && flow.seconds >= before.seconds) {
        flow.bytes -= before.bytes;
        flow.seconds -= before.seconds;
      }
      flow.tokens /= std::max(seconds, kSecondsMin);
    }
    if (edge.from == kCoordinator) all_[edge.phase] += flow;
    // What prefill returns to the coordinator is what it got.
    if (edge.phase == "prefill" && edge.to == kCoordinator) return;
    const EdgeEnd from = EndOf(edge.from, hands_over ? "prefill" : edge.phase);
    const EdgeEnd to = EndOf(edge.to, hands_over ? "decode" : edge.phase);
    edges_[from][{to, edge.phase}] += flow;
  }

  // Names are never cut, because those of pods differ in their last letters.
  void FitNames() {
    const auto fit = [&](const std::string& name, size_t indent) {
      width_ = std::max(width_, indent + name.size() + 1);
    };
    for (const Row& row : rows_) fit(row.name, 0);
    for (const auto& [from, nexts] : edges_) {
      for (const auto& [next, flow] : nexts) fit(NameOf(next.to), kArrowWidth);
    }
  }

  const std::string& NameOf(const EdgeEnd& end) const {
    return end.row ? rows_[*end.row].name : end.name;
  }

  void Put(const std::string& line) {
    out_ += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }

  void PutRole(std::string_view role, bool title) {
    std::vector<size_t> order;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const bool other = rows_[i].role != "prefill" && rows_[i].role != "decode";
      if (rows_[i].role == role || (role == "both" && other)) order.push_back(i);
    }
    if (order.empty()) return;
    if (title) Put("\n" + RoleTitle(rows_[order.front()].role));
    for (size_t i : order) {
      PutRow(rows_[i]);
      PutEdges({i, ""});
    }
  }

  void PutRow(const Row& row) {
    std::string kv = fmt::format("{}/{}", FormatCount(row.used), FormatCount(row.blocks));
    std::string share = ShareText(static_cast<double>(row.used), static_cast<double>(row.blocks));
    if (row.up < row.stages) {
      kv = row.stages == 1 ? "not up" : fmt::format("{} not up", row.stages - row.up);
      share.clear();
    }
    Put(fmt::format("{:<{}}[{}] {:<9}{:>5} {:>5}  {:>13} {:>6}", row.name, width_,
                    LayerBar(row.layers, layers_, kBarWidth), LayersText({row.layers}),
                    FormatCount(row.running), FormatCount(row.waiting), kv, share));
  }

  void PutEdges(const EdgeEnd& from) {
    const auto found = edges_.find(from);
    if (found == edges_.end()) return;
    std::vector<std::pair<NextEdge, EdgeSum>> all(found->second.begin(), found->second.end());
    const size_t most = rows_.size() <= kStagesApart ? kNextMax : 1;
    size_t shown = all.size() <= most ? all.size() : most - 1;
    if (shown < all.size()) {
      std::ranges::stable_sort(all, std::ranges::greater(), [](const auto& edge) {
        return std::pair(edge.second.planned, edge.second.tokens);
      });
    }
    for (size_t i = 0; i < shown; ++i) {
      const auto& [next, flow] = all[i];
      PutEdge(NameOf(next.to), next.phase, flow);
    }
    // The rest, by phase, because hand-overs are counted in other tokens.
    std::map<std::string, std::pair<size_t, EdgeSum>> rest;
    for (; shown < all.size(); ++shown) {
      auto& [count, flow] = rest[all[shown].first.phase];
      ++count;
      flow += all[shown].second;
    }
    for (const auto& [phase, sum] : rest) {
      const bool more = rest.size() == 1 && sum.first < all.size();
      PutEdge(fmt::format("{} {}", sum.first, more ? "more" : "stages"), phase, sum.second);
    }
  }

  void PutEdge(const std::string& to, const std::string& phase, const EdgeSum& flow) {
    const bool hands_over = phase == kHandOver;
    const std::string planned = flow.planned > 0 ? Short(flow.planned) + " tok/s" : "-";
    const std::string measured = Short(flow.tokens) + (rates_ ? " tok/s" : " tok");
    std::string planned_share, share, speed;
    if (hands_over) {
      speed = flow.seconds > 0 ? BytesText(static_cast<int64_t>(flow.bytes / flow.seconds)) + "/s"
                               : "-";
    } else {
      const EdgeSum& all = all_[phase];
      if (flow.planned > 0) planned_share = ShareText(flow.planned, all.planned);
      share = ShareText(flow.tokens, all.tokens);
    }
    Put(fmt::format("  {} {:<{}}{:<12}{:>5}   {:<12}{:>5} {:>15}", hands_over ? "=>" : "->", to,
                    width_ - kArrowWidth, planned, planned_share, measured, share, speed));
  }

  const bool rates_;
  int layers_ = 0;
  size_t width_ = kNameWidth;  // of the first column
  std::vector<Row> rows_;
  std::map<std::pair<std::string, std::string>, size_t> places_;  // by role and worker
  std::map<std::tuple<std::string, std::string, std::string>, const EdgeView*> before_;
  std::map<EdgeEnd, std::map<NextEdge, EdgeSum>> edges_;
  std::map<std::string, EdgeSum> all_;  // by phase: what enters
  std::string out_;
};

}  // namespace

std::string ClusterPicture(const ClusterView& view, const std::optional<EarlierView>& earlier) {
  return Picture(view, earlier).Text();
}

}  // namespace millrace::apps
