#include "apps/cluster/cluster_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "apps/cluster/cluster_picture.h"
#include "apps/cluster/json_fields.h"
#include "apps/common/text_table.h"
#include "base/log.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr size_t kSentenceBytesMax = 512;
constexpr int kLayerMax = 1 << 20;
constexpr size_t kLineWidth = 80;

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

int64_t CountField(const Json& object, const char* key) {
  return std::max<int64_t>(0, IntegerField(object, key));
}

std::string NoticeText(const Json& worker) {
  const auto at = worker.find("notice");
  if (at == worker.end() || !at->is_object()) return "";
  std::string text = FlagField(*at, "leaves") ? "leaving" : "may leave";
  if (HasNumber(*at, "in_s")) text += fmt::format(" in {:.0f} s", RealField(*at, "in_s"));
  return fmt::format("{} ({}: {})", text, TextField(*at, "source"), TextField(*at, "kind"));
}

WorkerView ReadWorker(const Json& json) {
  WorkerView worker;
  worker.name = TextField(json, "name");
  worker.address = TextField(json, "address");
  worker.device = TextField(json, "device");
  worker.state = TextField(json, "state");
  worker.note = TextField(json, "note", kSentenceBytesMax);
  worker.notice = NoticeText(json);
  worker.layers = Layers(json);
  worker.rank = static_cast<int>(std::clamp<int64_t>(IntegerField(json, "rank"), 0, kLayerMax));
  worker.ranks = static_cast<int>(std::clamp<int64_t>(IntegerField(json, "ranks"), 1, kLayerMax));
  worker.weight_bytes = CountField(json, "weight_bytes");
  worker.kv_bytes = CountField(json, "kv_bytes");
  worker.batches = IntegerField(json, "batches");
  worker.silent_s = RealField(json, "silent_s");
  worker.memory_bytes = CountField(json, "memory_bytes");
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

std::vector<std::string> Names(const Json& object, const char* key) {
  std::vector<std::string> names;
  const auto at = object.find(key);
  if (at == object.end() || !at->is_array()) return names;
  for (const Json& name : *at) {
    names.push_back(name.is_string() ? Printable(name.get<std::string>(), kNameBytesMax) : "");
  }
  return names;
}

PipelineView ReadPipeline(const Json& json) {
  PipelineView pipeline;
  pipeline.id = IntegerField(json, "id");
  pipeline.workers = Names(json, "workers");
  pipeline.layers = Layers(json);
  pipeline.role = TextField(json, "role");
  pipeline.state = TextField(json, "state");
  pipeline.fingerprint = TextField(json, "fingerprint");
  pipeline.requests = IntegerField(json, "requests");
  pipeline.blocks_total = IntegerField(json, "blocks_total");
  pipeline.blocks_used = IntegerField(json, "blocks_used");
  return pipeline;
}

StageView ReadStage(const Json& json) {
  const std::vector<LayerRange> layers = Layers(json);
  return {.workers = Names(json, "workers"),
          .layers = layers.empty() ? LayerRange{} : layers.front(),
          .role = TextField(json, "role"),
          .up = FlagField(json, "up"),
          .kv_blocks = CountField(json, "kv_blocks"),
          .kv_blocks_used = CountField(json, "kv_blocks_used"),
          .running = CountField(json, "running"),
          .waiting = CountField(json, "waiting")};
}

EdgeView ReadEdge(const Json& json) {
  return {.from = TextField(json, "from"),
          .to = TextField(json, "to"),
          .phase = TextField(json, "phase"),
          .planned_tokens_per_s = std::max(0.0, RealField(json, "planned_tokens_per_s")),
          .tokens = CountField(json, "tokens"),
          .requests = CountField(json, "requests"),
          .bytes = CountField(json, "bytes"),
          .seconds = std::max(0.0, RealField(json, "seconds"))};
}

// Between the controller and the worker: the slower direction, and the age of the older
// measurement.
std::string ControllerLinkText(const std::vector<LinkView>& links, const std::string& worker) {
  std::optional<LinkView> slower;
  for (const LinkView& link : links) {
    if (!(link.from == worker && link.to == kControllerEnd) &&
        !(link.from == kControllerEnd && link.to == worker)) {
      continue;
    }
    if (!slower) slower = link;
    slower->latency_s = std::max(slower->latency_s, link.latency_s);
    slower->bytes_per_s = std::min(slower->bytes_per_s, link.bytes_per_s);
    slower->age_s = std::max(slower->age_s, link.age_s);
  }
  if (!slower) return "-";
  return fmt::format("{:.2f} ms, {:.0f} Mbit/s, {:.0f} s ago", slower->latency_s * 1e3,
                     slower->bytes_per_s * 8 / 1e6, slower->age_s);
}

// What is not known is "-".
std::string MachineTable(const ClusterView& view) {
  std::vector<std::vector<std::string>> rows = {{"MACHINE", "ZONE", "MEMORY", "CORES", "PRICE",
                                                 "SPOT", "PREFILL", "DECODE", "CONTROLLER",
                                                 "BITS"}};
  const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
  const auto rate = [](double tokens_per_s) { return fmt::format("{:.0f} tok/s", tokens_per_s); };
  for (const WorkerView& worker : view.workers) {
    rows.push_back(
        {worker.name, or_dash(worker.zone),
         worker.memory_bytes > 0 ? FormatBytes(worker.memory_bytes) : "-",
         worker.cores ? FormatCount(*worker.cores) : "-",
         worker.price_usd_per_hour ? fmt::format("{:g} USD/h", *worker.price_usd_per_hour) : "-",
         worker.spot ? "yes" : "no", worker.rates ? rate(worker.rates->prefill_tokens_per_s) : "-",
         worker.rates ? rate(worker.rates->decode_tokens_per_s) : "-",
         ControllerLinkText(view.links, worker.name), or_dash(worker.numeric_class)});
  }
  return TextTable(rows);
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
  return rows.size() > 2 ? "\n" + TextTable(rows) : "";
}

std::string WorkerTable(const std::vector<WorkerView>& workers) {
  std::vector<std::vector<std::string>> rows = {
      {"WORKER", "STATE", "WEIGHTS", "KV", "BATCHES", "SILENT", "ADDRESS", "DEVICE"}};
  for (const WorkerView& worker : workers) {
    rows.push_back({worker.name, worker.state, FormatBytes(worker.weight_bytes),
                    FormatBytes(worker.kv_bytes), FormatCount(worker.batches),
                    fmt::format("{:.1f} s", worker.silent_s), worker.address, worker.device});
  }
  return TextTable(rows);
}

std::string State(const ClusterView& view) {
  std::string out = view.missing.empty() ? "ready" : "not ready: " + view.missing;
  if (!view.degraded.empty()) out += ", but not every stage is up: " + view.degraded;
  if (view.changing) out += "; changing to another plan";
  return out;
}

std::string RequestsText(const ClusterView& view) {
  const WaitingView& waits = view.waiting_for;
  const int64_t running =
      std::max<int64_t>(0, view.requests - waits.prefill - waits.decode - waits.transfer);
  std::string out = fmt::format("{} request{}: {} running", FormatCount(view.requests),
                                view.requests == 1 ? "" : "s", FormatCount(running));
  const auto add = [&](int64_t count, std::string_view what) {
    if (count > 0) out += fmt::format(", {} {}", FormatCount(count), what);
  };
  add(waits.prefill, "waiting for prefill");
  add(waits.decode, "waiting for decode");
  add(waits.transfer, "waiting for KV on its way");
  add(view.moving, "moving");
  return out;
}

std::string HeadText(const ClusterView& view) {
  std::string out =
      fmt::format("{}, plan {}, term {}: {}\n", view.model, view.epoch, view.term, State(view));
  if (!view.given_up.empty()) {
    out += fmt::format("plan {} was given up: {}\n", view.given_up_epoch, view.given_up);
  }
  return out + RequestsText(view) + "\n";
}

// "pipelines: 3 open, 1 retiring (2 requests)"
std::string PipelinesText(const std::vector<PipelineView>& pipelines) {
  std::string out;
  for (const std::string_view state : {"open", "opening", "retiring"}) {
    int64_t count = 0, requests = 0;
    for (const PipelineView& pipeline : pipelines) {
      if (pipeline.state != state) continue;
      ++count;
      requests += pipeline.requests;
    }
    if (count == 0) continue;
    out += fmt::format("{} {} {}", out.empty() ? "pipelines:" : ",", count, state);
    if (state != "open") out += fmt::format(" ({} requests)", requests);
  }
  return out.empty() ? "" : out + "\n";
}

// Comma-separated, in lines of at most kLineWidth.
std::string Wrapped(std::string_view head, const std::vector<std::string>& parts) {
  std::string out, line(head);
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part = parts[i] + (i + 1 < parts.size() ? "," : "");
    if (line.size() + 1 + part.size() > kLineWidth) {
      out += std::exchange(line, " ") + "\n";
    }
    line += " " + part;
  }
  return out + line + "\n";
}

std::string CountersText(const ClusterView& view) {
  std::vector<std::string> counted;
  for (const auto& [name, value] : view.counters) {
    if (value == 0) continue;
    std::string words = name;
    std::replace(words.begin(), words.end(), '_', ' ');
    counted.push_back(fmt::format("{} {}", words, FormatCount(value)));
  }
  return counted.empty() ? "" : Wrapped("since the start:", counted);
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
  for (const Json& stage : ObjectsField(status, "stages")) view.stages.push_back(ReadStage(stage));
  for (const Json& edge : ObjectsField(status, "edges")) view.edges.push_back(ReadEdge(edge));
  view.links = ReadLinks(status);
  view.requests = IntegerField(status, "requests");
  view.moving = IntegerField(status, "moving");
  if (const auto at = status.find("waiting_for"); at != status.end() && at->is_object()) {
    view.waiting_for = {CountField(*at, "prefill"), CountField(*at, "decode"),
                        CountField(*at, "transfer")};
  }
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
  std::string out = HeadText(view) + "\n" + ClusterPicture(view, std::nullopt);
  if (const std::string pipelines = PipelinesText(view.pipelines); !pipelines.empty()) {
    out += pipelines + "\n";
  }
  out += view.workers.empty() ? "no worker has joined\n" : WorkerTable(view.workers);
  for (const WorkerView& worker : view.workers) {
    if (!worker.note.empty()) out += fmt::format("{}: {}\n", worker.name, worker.note);
    if (!worker.notice.empty()) out += fmt::format("{}: {}\n", worker.name, worker.notice);
  }
  if (!view.workers.empty()) out += "\n" + MachineTable(view);
  out += ClassTable(view);
  if (const std::string counters = CountersText(view); !counters.empty()) out += "\n" + counters;
  return out;
}

std::string FormatClusterNow(const ClusterView& view, const std::optional<EarlierView>& earlier) {
  std::string out = HeadText(view) + "\n" + ClusterPicture(view, earlier);
  out += PipelinesText(view.pipelines);
  std::vector<std::string> others;
  int64_t serving = 0;
  for (const WorkerView& worker : view.workers) {
    serving += worker.state == "serving" ? 1 : 0;
    if (worker.state != "serving") others.push_back(worker.name + " " + worker.state);
    if (!worker.notice.empty()) others.push_back(worker.name + " " + worker.notice);
  }
  others.insert(others.begin(), fmt::format("{} serving", serving));
  return out + Wrapped("workers:", others) + CountersText(view);
}

}  // namespace millrace::apps
