#include "apps/cluster/plan_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr size_t kDiffNameBytesMax = 64;

// One rank's share of one layer. The same rank may hold other bytes under another degree.
struct Share {
  int layer = 0, rank = 0, ranks = 1;
  friend auto operator<=>(const Share&, const Share&) = default;
};
using Shares = std::set<Share>;

std::vector<LayerRange> Ranges(const Shares& shares) {
  std::set<int> layers;
  for (const Share& share : shares) layers.insert(share.layer);
  std::vector<LayerRange> out;
  for (int layer : layers) {
    if (!out.empty() && out.back().end == layer) {
      ++out.back().end;
    } else {
      out.push_back({layer, layer + 1});
    }
  }
  return out;
}

int LayerCount(const std::vector<LayerRange>& ranges) {
  int count = 0;
  for (const LayerRange& range : ranges) count += range.size();
  return count;
}

void Insert(Shares& shares, LayerRange layers, int rank, int ranks) {
  for (int layer = layers.begin; layer < layers.end; ++layer) shares.insert({layer, rank, ranks});
}

// Bytes of each whole layer, from a worker that holds it.
std::map<int, double> LayerBytes(const ClusterView& now) {
  std::map<int, double> bytes;
  for (const WorkerView& worker : now.workers) {
    const int held = LayerCount(worker.layers);
    if (held == 0 || worker.weight_bytes == 0) continue;
    const double each = static_cast<double>(worker.weight_bytes) * worker.ranks / held;
    for (const LayerRange& range : worker.layers) {
      for (int layer = range.begin; layer < range.end; ++layer) bytes[layer] = each;
    }
  }
  return bytes;
}

std::optional<int64_t> Bytes(const Shares& shares, const std::map<int, double>& layer_bytes) {
  double sum = 0;
  for (const Share& share : shares) {
    const auto at = layer_bytes.find(share.layer);
    if (at == layer_bytes.end()) return std::nullopt;
    sum += at->second / share.ranks;
  }
  return static_cast<int64_t>(sum);
}

Shares Without(const Shares& from, const Shares& what) {
  Shares out;
  std::set_difference(from.begin(), from.end(), what.begin(), what.end(),
                      std::inserter(out, out.end()));
  return out;
}

std::string FetchText(const WorkerChange& change) {
  if (change.fetched.empty()) return "";
  const std::string size = change.fetched_bytes
                               ? "about " + FormatBytes(*change.fetched_bytes)
                               : std::string("of unknown size: no worker holds them");
  return fmt::format("gets {} ({})", LayersText(change.fetched), size);
}

}  // namespace

bool PlanDiff::empty() const {
  return std::all_of(changes.begin(), changes.end(), [](const WorkerChange& change) {
    return change.fetched.empty() && change.dropped.empty();
  });
}

PlanDiff DiffPlans(const ClusterView& now, const WorkerPlan& then) {
  std::map<std::string, std::pair<Shares, Shares>> held;  // now, then
  std::set<std::string> present;
  for (const WorkerView& worker : now.workers) {
    present.insert(worker.name);
    Shares& shares = held[worker.name].first;
    for (const LayerRange& range : worker.layers) {
      Insert(shares, range, worker.rank, worker.ranks);
    }
  }
  Shares covered;
  for (const StagePlan& stage : then.plan.stages) {
    Insert(covered, stage.layers, 0, 1);
    for (size_t rank = 0; rank < stage.nodes.size(); ++rank) {
      const std::string name =
          Printable(then.workers[static_cast<size_t>(stage.nodes[rank])], kDiffNameBytesMax);
      Insert(held[name].second, stage.layers, static_cast<int>(rank), stage.tensor_parallel);
    }
  }
  PlanDiff diff;
  diff.num_layers = then.plan.num_layers;
  Shares whole;
  Insert(whole, {0, diff.num_layers}, 0, 1);
  diff.uncovered = Ranges(Without(whole, covered));
  const auto layer_bytes = LayerBytes(now);
  for (const auto& [name, shares] : held) {
    const Shares fetched = Without(shares.second, shares.first);
    WorkerChange& change = diff.changes.emplace_back();
    change.worker = name;
    change.present = present.contains(name);
    change.now = Ranges(shares.first);
    change.then = Ranges(shares.second);
    change.fetched = Ranges(fetched);
    change.dropped = Ranges(Without(shares.first, shares.second));
    change.fetched_bytes = Bytes(fetched, layer_bytes);
  }
  return diff;
}

std::string FormatPlanDiff(const PlanDiff& diff) {
  std::string out;
  int64_t bytes = 0;
  int layers = 0;
  bool known = true;
  for (const WorkerChange& change : diff.changes) {
    std::string what = FetchText(change);
    if (!change.dropped.empty()) {
      what += (what.empty() ? "" : ", ") + ("drops " + LayersText(change.dropped));
    }
    if (what.empty()) what = "stays";
    if (!change.present) what += "; HAS NOT JOINED";
    out += fmt::format("{}: {} -> {}: {}\n", change.worker, LayersText(change.now),
                       LayersText(change.then), what);
    layers += LayerCount(change.fetched);
    known = known && change.fetched_bytes.has_value();
    bytes += change.fetched_bytes.value_or(0);
  }
  if (!diff.uncovered.empty()) {
    out += fmt::format("the plan leaves out layers {}: no request could be served\n",
                       LayersText(diff.uncovered));
  }
  if (diff.empty()) return out + "no layer moves\n";
  return out + fmt::format(
                   "{} layer{} to fetch, {}{} of weights; the KV of running requests moves "
                   "with them\n",
                   layers, layers == 1 ? "" : "s", known ? "about " : "at least ",
                   FormatBytes(bytes));
}

}  // namespace millrace::apps
