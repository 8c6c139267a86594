#include "ops/autopilot/autopilot_metrics.h"

#include <map>
#include <string>

namespace millrace::ops {
namespace {

serve::ClusterMetric Gauge(std::string name, std::string help, double value) {
  return {.name = std::move(name),
          .help = std::move(help),
          .counter = false,
          .series = {{.labels = {}, .value = value}}};
}

}  // namespace

void AddAutopilotMetrics(const AutopilotStatus& status,
                         std::vector<serve::ClusterMetric>& metrics) {
  serve::ClusterMetric made{.name = "millrace_autopilot_decisions",
                            .help = "Kept decisions of the autopilot, by what was decided and why.",
                            .counter = false};
  std::map<std::pair<std::string, std::string>, int> counts;
  for (const cluster::Decision& decision : status.decisions) {
    ++counts[{std::string(KindName(decision.kind)), std::string(CauseName(decision.cause))}];
  }
  for (const auto& [key, count] : counts) {
    made.series.push_back({.labels = {{"decision", key.first}, {"cause", key.second}},
                           .value = static_cast<double>(count)});
  }
  metrics.push_back(std::move(made));
  metrics.push_back(Gauge("millrace_autopilot_advice",
                          "1 while the autopilot advises another plan than the one in force.",
                          status.advice ? 1 : 0));
  metrics.push_back(Gauge("millrace_autopilot_load_requests_per_second",
                          "Requests that arrived, as the autopilot measures the load.",
                          status.load.requests_per_s));
  metrics.push_back(Gauge("millrace_autopilot_attainment_ratio",
                          "Share of the recent answers that kept the limits of --slo.",
                          status.service.attainment()));
}

}  // namespace millrace::ops
