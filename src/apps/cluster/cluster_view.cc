#include "apps/cluster/cluster_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "base/log.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr size_t kNameBytesMax = 64;
constexpr size_t kSentenceBytesMax = 512;
constexpr int kLayerMax = 1 << 20;

std::string Text(const Json& object, const char* key, size_t max_bytes = kNameBytesMax) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? Printable(at->get<std::string>(), max_bytes) : "";
}

int64_t Number(const Json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || !at->is_number_integer()) return 0;
  if (!at->is_number_unsigned()) return at->get<int64_t>();
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(std::min(at->get<uint64_t>(), kMost));
}

double Real(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : 0;
}

bool Flag(const Json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_boolean() && at->get<bool>();
}

// The objects of an array; other elements are skipped.
std::vector<Json> Objects(const Json& object, const char* key) {
  std::vector<Json> out;
  const auto at = object.find(key);
  if (at == object.end() || !at->is_array()) return out;
  for (const Json& item : *at) {
    if (item.is_object()) out.push_back(item);
  }
  return out;
}

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
  worker.name = Text(json, "name");
  worker.address = Text(json, "address");
  worker.device = Text(json, "device");
  worker.state = Text(json, "state");
  worker.note = Text(json, "note", kSentenceBytesMax);
  worker.layers = Layers(json);
  worker.rank = static_cast<int>(std::clamp<int64_t>(Number(json, "rank"), 0, kLayerMax));
  worker.ranks = static_cast<int>(std::clamp<int64_t>(Number(json, "ranks"), 1, kLayerMax));
  worker.weight_bytes = std::max<int64_t>(0, Number(json, "weight_bytes"));
  worker.kv_bytes = std::max<int64_t>(0, Number(json, "kv_bytes"));
  worker.batches = Number(json, "batches");
  worker.silent_s = Real(json, "silent_s");
  return worker;
}

PipelineView ReadPipeline(const Json& json) {
  PipelineView pipeline;
  pipeline.id = Number(json, "id");
  const auto workers = json.find("workers");
  if (workers != json.end() && workers->is_array()) {
    for (const Json& name : *workers) {
      pipeline.workers.push_back(
          name.is_string() ? Printable(name.get<std::string>(), kNameBytesMax) : "");
    }
  }
  pipeline.layers = Layers(json);
  pipeline.role = Text(json, "role");
  pipeline.state = Text(json, "state");
  pipeline.requests = Number(json, "requests");
  pipeline.blocks_total = Number(json, "blocks_total");
  pipeline.blocks_used = Number(json, "blocks_used");
  return pipeline;
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

std::string RouteText(const PipelineView& pipeline) {
  std::string out;
  for (size_t i = 0; i < pipeline.workers.size(); ++i) {
    out += (i == 0 ? "" : " > ") + pipeline.workers[i];
    if (i < pipeline.layers.size()) out += " " + LayersText({pipeline.layers[i]});
  }
  return out;
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
  view.model = Text(status, "model");
  view.term = Number(status, "term");
  view.epoch = Number(status, "epoch");
  view.missing = Text(status, "missing", kSentenceBytesMax);
  view.degraded = Text(status, "degraded", kSentenceBytesMax);
  view.changing = Flag(status, "changing");
  if (const auto at = status.find("given_up"); at != status.end() && at->is_object()) {
    view.given_up = Text(*at, "reason", kSentenceBytesMax);
    view.given_up_epoch = Number(*at, "plan");
  }
  for (const Json& worker : Objects(status, "workers")) view.workers.push_back(ReadWorker(worker));
  for (const Json& pipeline : Objects(status, "pipelines"))
    view.pipelines.push_back(ReadPipeline(pipeline));
  view.requests = Number(status, "requests");
  view.waiting = Number(status, "waiting");
  view.moving = Number(status, "moving");
  const auto counters = status.find("counters");
  if (counters != status.end() && counters->is_object()) {
    for (const auto& [name, value] : counters->items()) {
      if (value.is_number_integer()) {
        view.counters.emplace_back(Printable(name, kNameBytesMax), Number(*counters, name.c_str()));
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
