#include "apps/cluster/cluster_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "apps/cluster/json_fields.h"
#include "base/log.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr size_t kSentenceBytesMax = 512;
constexpr int kLayerMax = 1 << 20;
constexpr std::string_view kCoordinator = "coordinator";

// [[0, 6], [8, 9]].
std::vector<LayerRange> Layers(const Json& object) {
  std::vector<LayerRange> out;
  const auto at = object.find("layers");
  if (at == object.end() || !at->is_array()) return out;
  for (const Json& range : *at) {
    if (!range.is_array() || range.size() != 2 || !range[0].is_number_integer() ||
        !range[1].is_number_integer()) {
      continue;
    }
    const auto begin = range[0].get<int64_t>(), end = range[1].get<int64_t>();
    if (begin < 0 || begin >= end || end > kLayerMax) continue;
    out.push_back({static_cast<int>(begin), static_cast<int>(end)});
  }
  return out;
}

WorkerView ReadWorker(const Json& json) {
  WorkerView worker;
  worker.name = TextField(json, "name");
  worker.address = TextField(json, "address");
  worker.device = TextField(json, "device");
  worker.state = TextField(json, "state");
  worker.note = TextField(json, "note", kSentenceBytesMax);
  worker.layers = Layers(json);
  worker.rank = static_cast<int>(std::clamp<int64_t>(IntegerField(json, "rank"), 0, kLayerMax));
  worker.ranks = static_cast<int>(std::clamp<int64_t>(IntegerField(json, "ranks"), 1, kLayerMax));
  worker.weight_bytes = std::max<int64_t>(0, IntegerField(json, "weight_bytes"));
  worker.kv_bytes = std::max<int64_t>(0, IntegerField(json, "kv_bytes"));
  worker.batches = IntegerField(json, "batches");
  worker.silent_s = RealField(json, "silent_s");
  worker.memory_bytes = std::max<int64_t>(0, IntegerField(json, "memory_bytes"));
  if (HasNumber(json, "cores")) worker.cores = IntegerField(json, "cores");
  worker.zone = TextField(json, "zone");
  if (HasNumber(json, "price_usd_per_hour")) {
    worker.price_usd_per_hour = RealField(json, "price_usd_per_hour");
  }
  worker.spot = FlagField(json, "spot");
  worker.numeric_class = TextField(json, "numeric_class", kSentenceBytesMax);
  worker.fingerprint = TextField(json, "fingerprint");
  if (HasNumber(json, "prefill_tokens_per_s")) {
    worker.rates =
        cost::ProfileRates{.prefill_tokens_per_s = RealField(json, "prefill_tokens_per_s"),
                           .decode_tokens_per_s = RealField(json, "decode_tokens_per_s")};
  }
  return worker;
}

PipelineView ReadPipeline(const Json& json) {
  PipelineView pipeline;
  pipeline.id = IntegerField(json, "id");
  const auto workers = json.find("workers");
  if (workers != json.end() && workers->is_array()) {
    for (const Json& name : *workers) {
      pipeline.workers.push_back(
          name.is_string() ? Printable(name.get<std::string>(), kNameBytesMax) : "");
    }
  }
  pipeline.layers = Layers(json);
  pipeline.role = TextField(json, "role");
  pipeline.state = TextField(json, "state");
  pipeline.fingerprint = TextField(json, "fingerprint");
  pipeline.requests = IntegerField(json, "requests");
  pipeline.blocks_total = IntegerField(json, "blocks_total");
  pipeline.blocks_used = IntegerField(json, "blocks_used");
  return pipeline;
}

EdgeView ReadEdge(const Json& json) {
  return {.from = TextField(json, "from"),
          .to = TextField(json, "to"),
          .phase = TextField(json, "phase"),
          .planned_tokens_per_s = std::max(0.0, RealField(json, "planned_tokens_per_s")),
          .tokens = std::max<int64_t>(0, IntegerField(json, "tokens"))};
}

// Columns as wide as their widest cell; the last one is not padded.
std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

// What is not known is "-".
std::string MachineTable(const std::vector<WorkerView>& workers) {
  std::vector<std::vector<std::string>> rows = {
      {"MACHINE", "ZONE", "MEMORY", "CORES", "PRICE", "SPOT", "PREFILL", "DECODE", "BITS"}};
  const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
  const auto rate = [](double tokens_per_s) { return fmt::format("{:.0f} tok/s", tokens_per_s); };
  for (const WorkerView& worker : workers) {
    rows.push_back(
        {worker.name, or_dash(worker.zone),
         worker.memory_bytes > 0 ? FormatBytes(worker.memory_bytes) : "-",
         worker.cores ? FormatCount(*worker.cores) : "-",
         worker.price_usd_per_hour ? fmt::format("{:g} USD/h", *worker.price_usd_per_hour) : "-",
         worker.spot ? "yes" : "no", worker.rates ? rate(worker.rates->prefill_tokens_per_s) : "-",
         worker.rates ? rate(worker.rates->decode_tokens_per_s) : "-",
         or_dash(worker.numeric_class)});
  }
  return Table(rows);
}

// The numeric classes, if there are several: which fingerprint answers have, and who computes them.
std::string ClassTable(const ClusterView& view) {
  std::vector<std::vector<std::string>> rows = {
      {"CLASS", "WORKERS", "PIPELINES", "REQUESTS", "BITS"}};
  std::set<std::string> seen;
  for (const WorkerView& worker : view.workers) {
    if (!seen.insert(worker.fingerprint).second) continue;
    const auto workers =
        std::ranges::count(view.workers, worker.fingerprint, &WorkerView::fingerprint);
    int64_t pipelines = 0, requests = 0;
    for (const PipelineView& pipeline : view.pipelines) {
      if (pipeline.fingerprint != worker.fingerprint || pipeline.state != "open") continue;
      ++pipelines;
      requests += pipeline.requests;
    }
    rows.push_back({worker.fingerprint, FormatCount(workers), FormatCount(pipelines),
                    FormatCount(requests), worker.numeric_class});
  }
  return rows.size() > 2 ? "\n" + Table(rows) : "";
}

std::string RouteText(const PipelineView& pipeline) {
  std::string out;
  for (size_t i = 0; i < pipeline.workers.size(); ++i) {
    out += (i == 0 ? "" : " > ") + pipeline.workers[i];
    if (i < pipeline.layers.size()) out += " " + LayersText({pipeline.layers[i]});
  }
  return out;
}

// Planned and measured shares of the tokens of a phase that enter the cluster.
std::string EdgeTable(const std::vector<EdgeView>& edges) {
  std::map<std::string, std::pair<double, double>> entering;  // by phase: planned, measured
  for (const EdgeView& edge : edges) {
    if (edge.from != kCoordinator) continue;
    entering[edge.phase].first += edge.planned_tokens_per_s;
    entering[edge.phase].second += static_cast<double>(edge.tokens);
  }
  const auto share = [](double part, double all) {
    return all > 0 ? fmt::format("{:.1f} %", 100 * part / all) : std::string("-");
  };
  std::vector<std::vector<std::string>> rows = {
      {"FROM", "TO", "PHASE", "PLANNED", "MEASURED", "TOKENS"}};
  for (const EdgeView& edge : edges) {
    const auto [planned, measured] = entering[edge.phase];
    rows.push_back({edge.from, edge.to, edge.phase, share(edge.planned_tokens_per_s, planned),
                    share(static_cast<double>(edge.tokens), measured), FormatCount(edge.tokens)});
  }
  return Table(rows);
}

std::string State(const ClusterView& view) {
  std::string out = view.missing.empty() ? "ready" : "not ready: " + view.missing;
  if (!view.degraded.empty()) out += ", but not every stage is up: " + view.degraded;
  if (view.changing) out += "; changing to another plan";
  return out;
}

}  // namespace

std::string LayersText(const std::vector<LayerRange>& layers) {
  std::string out;
  for (const LayerRange& range : layers) {
    out += fmt::format("{}{}", out.empty() ? "" : ", ", range.begin);
    if (range.size() > 1) out += fmt::format("-{}", range.end - 1);
  }
  return out.empty() ? "-" : out;
}

ClusterView ReadClusterView(const Json& status) {
  ClusterView view;
  if (!status.is_object()) return view;
  view.model = TextField(status, "model");
  view.term = IntegerField(status, "term");
  view.epoch = IntegerField(status, "epoch");
  view.missing = TextField(status, "missing", kSentenceBytesMax);
  view.degraded = TextField(status, "degraded", kSentenceBytesMax);
  view.changing = FlagField(status, "changing");
  if (const auto at = status.find("given_up"); at != status.end() && at->is_object()) {
    view.given_up = TextField(*at, "reason", kSentenceBytesMax);
    view.given_up_epoch = IntegerField(*at, "plan");
  }
  for (const Json& worker : ObjectsField(status, "workers"))
    view.workers.push_back(ReadWorker(worker));
  for (const Json& pipeline : ObjectsField(status, "pipelines"))
    view.pipelines.push_back(ReadPipeline(pipeline));
  for (const Json& edge : ObjectsField(status, "edges")) view.edges.push_back(ReadEdge(edge));
  view.requests = IntegerField(status, "requests");
  view.waiting = IntegerField(status, "waiting");
  view.moving = IntegerField(status, "moving");
  const auto counters = status.find("counters");
  if (counters != status.end() && counters->is_object()) {
    for (const auto& [name, value] : counters->items()) {
      if (value.is_number_integer()) {
        view.counters.emplace_back(Printable(name, kNameBytesMax),
                                   IntegerField(*counters, name.c_str()));
      }
    }
  }
  return view;
}

std::string FormatClusterView(const ClusterView& view) {
  std::string out =
      fmt::format("{}, plan {}, term {}: {}\n", view.model, view.epoch, view.term, State(view));
  if (!view.given_up.empty()) {
    out += fmt::format("plan {} was given up: {}\n", view.given_up_epoch, view.given_up);
  }
  std::vector<std::vector<std::string>> rows = {{"WORKER", "STATE", "LAYERS", "RANK", "WEIGHTS",
                                                 "KV", "BATCHES", "SILENT", "ADDRESS", "DEVICE"}};
  for (const WorkerView& worker : view.workers) {
    rows.push_back({worker.name, worker.state, LayersText(worker.layers),
                    fmt::format("{}/{}", worker.rank, worker.ranks),
                    FormatBytes(worker.weight_bytes), FormatBytes(worker.kv_bytes),
                    FormatCount(worker.batches), fmt::format("{:.1f} s", worker.silent_s),
                    worker.address, worker.device});
  }
  if (view.workers.empty()) rows = {{"no worker has joined"}};
  out += "\n" + Table(rows);
  for (const WorkerView& worker : view.workers) {
    if (!worker.note.empty()) out += fmt::format("{}: {}\n", worker.name, worker.note);
  }
  if (!view.workers.empty()) out += "\n" + MachineTable(view.workers);
  if (!view.pipelines.empty()) {
    rows = {{"PIPELINE", "STATE", "ROLE", "REQUESTS", "KV BLOCKS", "ROUTE"}};
    for (const PipelineView& pipeline : view.pipelines) {
      rows.push_back({std::to_string(pipeline.id), pipeline.state, pipeline.role,
                      FormatCount(pipeline.requests),
                      fmt::format("{}/{}", pipeline.blocks_used, pipeline.blocks_total),
                      RouteText(pipeline)});
    }
    out += "\n" + Table(rows);
  }
  out += ClassTable(view);
  const auto entries = std::ranges::count(view.edges, kCoordinator, &EdgeView::from);
  if (entries > 1) out += "\n" + EdgeTable(view.edges);
  out +=
      fmt::format("\n{} requests, {} of them waiting for layers or room, {} moving\n",
                  FormatCount(view.requests), FormatCount(view.waiting), FormatCount(view.moving));
  std::vector<std::string> counted;
  for (const auto& [name, value] : view.counters) {
    if (value == 0) continue;
    std::string words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    counted.push_back(fmt::format("{} {}", words, FormatCount(value)));
  }
  if (!counted.empty()) out += fmt::format("since the start: {}\n", fmt::join(counted, ", "));
  return out;
}

}  // namespace millrace::apps
