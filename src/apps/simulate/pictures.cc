#include "apps/simulate/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"

namespace millrace::apps {
namespace {

constexpr double kStepsShown = 24;  // of one stage, in the timeline

std::string LatencyCdf(const sim::SimReport& report) {
  sim::ChartOptions options{.title = "Share of requests within a time",
                            .x_label = "milliseconds",
                            .y_label = "share",
                            .log_x = true,
                            .y_max = 1};
  const LatencyLimits& limits = report.limits;
  if (limits.ttft_s) options.vertical.emplace_back("TTFT limit", *limits.ttft_s * 1e3);
  if (limits.tpot_s) options.vertical.emplace_back("TPOT limit", *limits.tpot_s * 1e3);
  std::vector<sim::Series> series;
  for (const auto& [name, values] :
       {std::pair("TTFT", &report.latency.ttft), std::pair("TPOT", &report.latency.tpot),
        std::pair("End to end", &report.latency.e2e)}) {
    if (values->count() > 0) series.push_back(sim::CdfOf(name, *values));
  }
  return sim::LineChart(options, series);
}

std::string LatencyRate(const std::vector<sim::SimReport>& reports) {
  std::vector<sim::Series> series = {{"TTFT p50", {}}, {"TTFT p99", {}}, {"TPOT p99", {}}};
  for (const sim::SimReport& r : reports) {
    if (r.saturation) continue;  // no steady value
    series[0].points.emplace_back(*r.rate, r.latency.ttft.At(0.5) * 1e3);
    series[1].points.emplace_back(*r.rate, r.latency.ttft.At(0.99) * 1e3);
    series[2].points.emplace_back(*r.rate, r.latency.tpot.At(0.99) * 1e3);
  }
  return sim::LineChart({.title = "Latency against rate (rates that saturate are left out)",
                         .x_label = "requests per second",
                         .y_label = "milliseconds",
                         .dots = true},
                        series);
}

std::string AttainmentRate(const std::vector<sim::SimReport>& reports) {
  std::vector<sim::Series> series = {{"all limits", {}}, {"TTFT", {}}, {"TPOT", {}}};
  for (const sim::SimReport& r : reports) {
    const auto all =
        static_cast<double>(std::max<uint64_t>(r.latency.requests + r.latency.refused, 1));
    series[0].points.emplace_back(*r.rate, r.latency.attainment());
    series[1].points.emplace_back(*r.rate, static_cast<double>(r.latency.met_ttft) / all);
    series[2].points.emplace_back(*r.rate, static_cast<double>(r.latency.met_tpot) / all);
  }
  sim::ChartOptions options{.title = "Requests that meet their limits, against rate",
                            .x_label = "requests per second",
                            .y_label = "share",
                            .y_max = 1.02,
                            .dots = true};
  options.horizontal.emplace_back("wanted", reports.front().limits.share());
  return sim::LineChart(options, series);
}

std::string Queue(const std::vector<sim::LoadSample>& load) {
  std::vector<sim::Series> series = {{"in the service", {}}, {"without a token", {}}};
  for (const sim::LoadSample& s : load) {
    const double at = static_cast<double>(s.at.ns) * 1e-9;
    series[0].points.emplace_back(at, static_cast<double>(s.alive));
    series[1].points.emplace_back(at, static_cast<double>(s.waiting));
  }
  return sim::LineChart(
      {.title = "Requests in the service", .x_label = "seconds", .y_label = "requests"}, series);
}

// Draws some steps from the middle of the run.
std::string MiddleOf(const sim::Timeline& timeline) {
  const auto& steps = timeline.steps();
  const auto& middle = steps[steps.size() / 2].record;
  const double from = static_cast<double>(middle.begin[0].ns) * 1e-9;
  double longest = 0;
  for (size_t s = 0; s < middle.begin.size(); ++s) {
    longest = std::max(longest, (middle.end[s] - middle.begin[s]).seconds());
  }
  return sim::TimelineSvg(timeline, from, std::max(longest * kStepsShown, 1e-6));
}

}  // namespace

Result<std::vector<std::string>> WritePictures(const Pictures& pictures,
                                               const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> files = {
      {"latency_cdf.svg", LatencyCdf(pictures.reports.front())}};
  if (!pictures.load.empty()) files.emplace_back("queue.svg", Queue(pictures.load));
  if (!pictures.timeline.steps().empty()) {
    files.emplace_back("timeline.svg", MiddleOf(pictures.timeline));
  }
  if (pictures.reports.size() > 1) {
    files.emplace_back("latency_rate.svg", LatencyRate(pictures.reports));
    if (pictures.reports.front().limits.any()) {
      files.emplace_back("attainment_rate.svg", AttainmentRate(pictures.reports));
    }
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::vector<std::string> names;
  for (const auto& [name, text] : files) {
    names.push_back((std::filesystem::path(folder) / name).string());
    MR_RETURN_IF_ERROR(WriteFileAtomically(names.back(), text));
  }
  return names;
}

}  // namespace millrace::apps
