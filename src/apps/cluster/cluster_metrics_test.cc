#include "apps/cluster/cluster_metrics.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "serve/observe/metrics.h"

namespace millrace::apps {
namespace {

cluster::ClusterStatus SomeStatus() {
  cluster::ClusterStatus status;
  status.counters.hand_overs = 3;
  status.notices[{NoticeSource::kAws, NoticeKind::kTerminate}] = 2;
  status.waiting_for = {.prefill = 4, .decode = 5, .transfer = 6};
  status.stages = {{.workers = {"p"},
                    .layers = {0, 12},
                    .role = StageRole::kPrefill,
                    .up = true,
                    .kv_blocks = 64,
                    .kv_blocks_used = 7,
                    .running = 2,
                    .waiting = 1}};
  status.edges = {{.from = "coordinator",
                   .to = "p",
                   .phase = EdgePhase::kPrefill,
                   .planned = true,
                   .planned_tokens_per_s = 12.5,
                   .since_start = {.tokens = 90, .requests = 3}},
                  {.from = "p",
                   .to = "d",
                   .phase = EdgePhase::kHandOver,
                   .since_start = {.tokens = 90, .requests = 3, .bytes = 4096, .seconds = 0.25}}};
  return status;
}

std::string Rendered(const cluster::ClusterStatus& status) {
  const serve::ModelMetrics metrics("m", 128, {});
  return serve::RenderMetrics(metrics.Collect(ClusterMetrics(status)));
}

TEST(ClusterMetrics, NameStagesEdgesAndPhases) {
  const std::string text = Rendered(SomeStatus());
  const std::string model = R"(engine="0",model_name="m")";
  for (const std::string& line : {
           R"(millrace_cluster_hand_overs_total{)" + model + "} 3",
           R"(millrace_notices_total{)" + model + R"(,kind="terminate",source="aws"} 2)",
           R"(millrace_requests_waiting{)" + model + R"(,phase="transfer"} 6)",
           R"(millrace_stage_kv_blocks_used{)" + model +
               R"(,layers="0-11",role="prefill",stage="0",worker="p"} 7)",
           R"(millrace_edge_planned_tokens_per_second{)" + model +
               R"(,from="coordinator",phase="prefill",to="p"} 12.5)",
           R"(millrace_edge_tokens_total{)" + model + R"(,from="p",phase="hand-over",to="d"} 90)",
           R"(millrace_hand_over_bytes_total{)" + model + R"(,from="p",to="d"} 4096)",
           R"(millrace_hand_over_seconds_total{)" + model + R"(,from="p",to="d"} 0.25)",
       }) {
    EXPECT_NE(text.find(line + "\n"), std::string::npos) << line << "\n" << text;
  }
  EXPECT_NE(text.find("# TYPE millrace_edge_tokens_total counter\n"), std::string::npos);
  EXPECT_NE(text.find("# TYPE millrace_stage_kv_blocks gauge\n"), std::string::npos);
  EXPECT_EQ(text.find(R"(planned_tokens_per_second{)" + model + R"(,from="p")"), std::string::npos)
      << "the plan states no flow there";
}

TEST(ClusterMetrics, StagesAreBounded) {
  cluster::ClusterStatus status = SomeStatus();
  status.stages.assign(kStageSeriesMax + 10, status.stages.front());
  size_t series = 0;
  for (const serve::ClusterMetric& metric : ClusterMetrics(status)) {
    if (metric.name == "millrace_stage_kv_blocks") series = metric.series.size();
  }
  EXPECT_EQ(series, kStageSeriesMax);
}

TEST(ClusterMetrics, NoFamilyTwiceAndNoneWithoutSeries) {
  std::set<std::string> names;
  cluster::ClusterStatus status = SomeStatus();
  status.edges.pop_back();
  for (const serve::ClusterMetric& metric : ClusterMetrics(status)) {
    EXPECT_TRUE(names.insert(metric.name).second) << metric.name;
    EXPECT_FALSE(metric.help.empty()) << metric.name;
    EXPECT_FALSE(metric.series.empty()) << metric.name;
  }
}

}  // namespace
}  // namespace millrace::apps
