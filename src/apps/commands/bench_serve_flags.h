// What the options of `millrace bench serve` set, which of them go together, and what follows from
// them. One thread, at program start.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "apps/bench/load_client.h"
#include "apps/bench/metrics.h"
#include "apps/bench/workload.h"
#include "core/latency_limits.h"
#include "net/url.h"

namespace millrace::apps {

struct BenchServeFlags {
  // Server
  std::string base_url, host = "127.0.0.1", model, api_key;
  int port = 8000;
  std::string endpoint = "/v1/completions";
  bool insecure = false;
  // Workload and traffic
  WorkloadOptions workload;
  int64_t seed = 0;
  bool ignore_eos = false;
  std::optional<int> max_concurrency;
  int num_warmups = 0;
  // Report
  LatencyLimits slo;
  GoodputLimits goodput;  // the same limits in vLLM's syntax
  std::string percentile_metrics = "ttft,tpot,itl", metric_percentiles = "99";
  bool save_result = false, save_detailed = false, disable_progress = false;
  std::string result_dir, result_filename;
  std::set<std::string> given;

  bool chat() const;
  const char* backend_name() const { return chat() ? "openai-chat" : "openai"; }
};

// Refuses what would have no effect. An error is the user's.
Status ValidateBenchServe(const BenchServeFlags& flags);

// REQUIRES of those below: ValidateBenchServe is OK.
Result<net::Url> BaseUrlOf(const BenchServeFlags& flags);
// All but the model: the address, the headers and the kind of body.
Result<LoadTarget> TargetOf(const BenchServeFlags& flags);
Result<ReportOptions> ReportOptionsOf(const BenchServeFlags& flags);

}  // namespace millrace::apps
