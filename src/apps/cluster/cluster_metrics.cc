#include "apps/cluster/cluster_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "apps/cluster/cluster_view.h"
#include "plan/io/plan_yaml.h"

namespace millrace::apps {
namespace {

using serve::ClusterMetric;
using Labels = std::map<std::string, std::string>;

Labels LabelsOf(const cluster::EdgeStatus& edge, bool phase) {
  Labels labels = {{"from", edge.from}, {"to", edge.to}};
  if (phase) labels["phase"] = plan::PhaseName(edge.phase);
  return labels;
}

void AddEdges(const std::vector<cluster::EdgeStatus>& edges, std::vector<ClusterMetric>& out) {
  ClusterMetric planned{"millrace_edge_planned_tokens_per_second",
                        "Flow along an edge, as the plan in force states it.",
                        false,
                        {}};
  ClusterMetric tokens{"millrace_edge_tokens_total",
                       "Tokens that went along an edge: of prompts (prefill, hand-over), of "
                       "answers (decode), or of both.",
                       true,
                       {}};
  ClusterMetric requests{
      "millrace_edge_requests_total", "Requests that went along an edge.", true, {}};
  ClusterMetric bytes{"millrace_hand_over_bytes_total",
                      "KV of prompts that a worker pulled from another to decode.",
                      true,
                      {}};
  ClusterMetric seconds{"millrace_hand_over_seconds_total", "How long these pulls took.", true, {}};
  for (const cluster::EdgeStatus& edge : edges) {
    const Labels labels = LabelsOf(edge, true);
    const cluster::EdgeFlows::Flow& flow = edge.since_start;
    if (edge.planned_tokens_per_s > 0)
      planned.series.push_back({labels, edge.planned_tokens_per_s});
    tokens.series.push_back({labels, static_cast<double>(flow.tokens)});
    requests.series.push_back({labels, static_cast<double>(flow.requests)});
    if (edge.phase != EdgePhase::kHandOver) continue;
    bytes.series.push_back({LabelsOf(edge, false), static_cast<double>(flow.bytes)});
    seconds.series.push_back({LabelsOf(edge, false), flow.seconds});
  }
  for (ClusterMetric* metric : {&planned, &tokens, &requests, &bytes, &seconds}) {
    if (!metric->series.empty()) out.push_back(std::move(*metric));
  }
}

void AddStages(const std::vector<cluster::StageStatus>& stages, std::vector<ClusterMetric>& out) {
  ClusterMetric blocks{"millrace_stage_kv_blocks",
                       "KV blocks that a stage has room for; 0 while it is not up.",
                       false,
                       {}};
  ClusterMetric used{"millrace_stage_kv_blocks_used", "KV blocks that a stage holds.", false, {}};
  ClusterMetric running{"millrace_stage_requests_running",
                        "Requests that run in pipelines through a stage.",
                        false,
                        {}};
  ClusterMetric waiting{"millrace_stage_requests_waiting",
                        "Requests that wait in pipelines through a stage, for their turn, blocks "
                        "or KV.",
                        false,
                        {}};
  for (size_t s = 0; s < std::min(stages.size(), kStageSeriesMax); ++s) {
    const cluster::StageStatus& stage = stages[s];
    const Labels labels = {{"stage", std::to_string(s)},
                           {"worker", stage.workers.front()},
                           {"role", std::string(plan::RoleName(stage.role))},
                           {"layers", LayersText({stage.layers})}};
    blocks.series.push_back({labels, static_cast<double>(stage.kv_blocks)});
    used.series.push_back({labels, static_cast<double>(stage.kv_blocks_used)});
    running.series.push_back({labels, static_cast<double>(stage.running)});
    waiting.series.push_back({labels, static_cast<double>(stage.waiting)});
  }
  for (ClusterMetric* metric : {&blocks, &used, &running, &waiting}) {
    if (!metric->series.empty()) out.push_back(std::move(*metric));
  }
}

void AddNotices(const std::map<NoticeOrigin, uint64_t>& notices, std::vector<ClusterMetric>& out) {
  ClusterMetric metric{"millrace_notices_total",
                       "Notices that workers got about the end of their machine.",
                       true,
                       {}};
  for (const auto& [origin, count] : notices) {
    metric.series.push_back({{{"source", std::string(NoticeSourceName(origin.source))},
                              {"kind", std::string(NoticeKindName(origin.kind))}},
                             static_cast<double>(count)});
  }
  if (!metric.series.empty()) out.push_back(std::move(metric));
}

}  // namespace

std::vector<ClusterMetric> ClusterMetrics(const cluster::ClusterStatus& status) {
  std::vector<ClusterMetric> all;
  for (const auto& counter : cluster::AllControllerCounters()) {
    const auto value = static_cast<double>(status.counters.*counter.value);
    all.push_back({counter.metric, counter.help, true, {{{}, value}}});
  }
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  all.push_back(
      {"millrace_requests_waiting",
       "Requests that wait to compute their prompt (prefill), to decode after a hand-over "
       "(decode), or for their KV on its way there (transfer).",
       false,
       {{{{"phase", "prefill"}}, number(status.waiting_for.prefill)},
        {{{"phase", "decode"}}, number(status.waiting_for.decode)},
        {{{"phase", "transfer"}}, number(status.waiting_for.transfer)}}});
  AddNotices(status.notices, all);
  AddStages(status.stages, all);
  AddEdges(status.edges, all);
  return all;
}

}  // namespace millrace::apps
