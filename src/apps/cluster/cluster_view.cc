#include "apps/cluster/cluster_view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "apps/cluster/cluster_picture.h"
#include "apps/common/text_table.h"
#include "base/units.h"

namespace millrace::apps {
namespace {

constexpr size_t kLineWidth = 80;

// "leaving in 23 s (aws: terminate)"
std::string NoticeText(const NoticeView& notice) {
  std::string text = notice.leaves ? "leaving" : "may leave";
  if (notice.in_s) text += fmt::format(" in {:.0f} s", *notice.in_s);
  return fmt::format("{} ({}: {})", text, notice.source, notice.kind);
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
  const auto rate = [](const std::optional<double>& tokens_per_s) {
    return tokens_per_s ? fmt::format("{:.0f} tok/s", *tokens_per_s) : "-";
  };
  for (const WorkerView& worker : view.workers) {
    const MachineFacts& facts = worker.machine;
    rows.push_back(
        {worker.name, or_dash(facts.zone),
         worker.memory_bytes > 0 ? FormatBytes(worker.memory_bytes) : "-",
         facts.cores ? FormatCount(*facts.cores) : "-",
         facts.price_usd_per_hour ? fmt::format("{:g} USD/h", *facts.price_usd_per_hour) : "-",
         facts.spot ? "yes" : "no", rate(worker.prefill_tokens_per_s),
         rate(worker.decode_tokens_per_s), ControllerLinkText(view.links, worker.name),
         or_dash(worker.numeric_class)});
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
  const std::string missing = view.missing.value_or(""), degraded = view.degraded.value_or("");
  std::string out = missing.empty() ? "ready" : "not ready: " + missing;
  if (!degraded.empty()) out += ", but not every stage is up: " + degraded;
  if (view.changing) out += "; changing to another plan";
  return out;
}

std::string RequestsText(const ClusterView& view) {
  const cluster::WaitingStatus& waits = view.waiting_for;
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
  if (view.given_up) {
    out += fmt::format("plan {} was given up: {}\n", view.given_up->epoch, view.given_up->reason);
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
  auto view = ReadJson<ClusterView>(status);
  KeepMeasured(view.links);
  if (view.given_up && view.given_up->reason.empty()) view.given_up.reset();
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
    if (worker.notice) out += fmt::format("{}: {}\n", worker.name, NoticeText(*worker.notice));
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
    if (worker.notice) others.push_back(worker.name + " " + NoticeText(*worker.notice));
  }
  others.insert(others.begin(), fmt::format("{} serving", serving));
  return out + Wrapped("workers:", others) + CountersText(view);
}

}  // namespace millrace::apps
