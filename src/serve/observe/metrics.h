// The metrics of /metrics: vLLM's names, labels and buckets, so that existing dashboards work, and
// millrace_* in addition. Any thread.
//
// The front end feeds the histograms. Each scrape reads the controller's counters and gauges from
// one snapshot of its statistics, so they are never stale, and within a scrape
//   millrace_requests_accepted_total = running + waiting + swapped + sum of
//   millrace_requests_finished_total.
#pragma once

#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "cluster/generator.h"
#include "core/output.h"
#include "serve/observe/cluster_admin.h"
#include "serve/observe/slo_metrics.h"

namespace millrace::serve {

// One finished request of the controller (one prompt, n sequences).
struct FinishedRequest {
  std::string_view reason;  // "stop", "length", "abort", "error"
  int prompt_tokens = 0;
  int cached_prompt_tokens = 0;
  int generation_tokens = 0;          // sum over its sequences
  int longest_generation_tokens = 0;  // of one sequence
  int n = 1;
  int max_tokens = 0;
  Duration e2e;                  // from the arrival at the front end
  std::optional<Duration> ttft;  // likewise; none: it has no token, or had one before a restart
  std::optional<RequestTimes> times;
};

// http_requests_total and http_request_duration_seconds. `handler` is a route's path, or "none" for
// a path without a route, so that clients cannot add series. Routes that monitors poll are not
// counted.
class HttpMetrics {
 public:
  HttpMetrics();
  void Observe(std::string_view method, std::string_view handler, int status, Duration took);
  std::vector<prometheus::MetricFamily> Collect() const { return registry_.Collect(); }

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Histogram>& durations_;
};

// The histograms of one model, and the metric families made from the controller's statistics.
class ModelMetrics {
 public:
  // `cache_config` becomes the labels of vllm:cache_config_info, beside the number of KV blocks at
  // the time, which in a cluster changes with its workers.
  // Requests are judged by `limits` if there are any.
  ModelMetrics(std::string model_name, int max_model_len,
               std::map<std::string, std::string> cache_config, const LatencyLimits& limits = {});

  void ObserveFirstToken(Duration since_arrival);
  void ObserveInterToken(Duration gap);
  void ObserveFinished(const FinishedRequest& request);
  // It got no answer because of the load.
  void ObserveRefused();

  std::vector<prometheus::MetricFamily> Collect(const cluster::GeneratorStats& stats) const;
  std::vector<prometheus::MetricFamily> Collect(const std::vector<ClusterMetric>& metrics) const;

 private:
  void Judge(const FinishedRequest& request, const std::optional<RequestPhases>& phases);
  prometheus::Histogram& AddHistogram(const std::string& name, const std::string& help,
                                      const prometheus::Histogram::BucketBoundaries& buckets);

  const std::map<std::string, std::string> labels_;
  const std::map<std::string, std::string> cache_config_;
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& success_;
  prometheus::Histogram& first_token_;
  prometheus::Histogram& inter_token_;
  prometheus::Histogram& per_output_token_;
  prometheus::Histogram& e2e_;
  prometheus::Histogram& queue_;
  prometheus::Histogram& inference_;
  prometheus::Histogram& prefill_;
  prometheus::Histogram& decode_;
  prometheus::Histogram& hold_;
  prometheus::Histogram& transfer_;
  prometheus::Histogram& prompt_tokens_;
  prometheus::Histogram& generation_tokens_;
  prometheus::Histogram& longest_generation_;
  prometheus::Histogram& computed_prefill_;
  prometheus::Histogram& params_n_;
  prometheus::Histogram& params_max_tokens_;
  std::optional<SloMetrics> slo_;  // none: no limits
};

// process_resident_memory_bytes and its siblings, from /proc.
std::vector<prometheus::MetricFamily> ProcessMetrics();

// The text exposition format.
std::string RenderMetrics(const std::vector<prometheus::MetricFamily>& families);

}  // namespace millrace::serve
