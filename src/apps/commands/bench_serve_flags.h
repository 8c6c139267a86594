// What the options of `millrace bench serve` set, which of them go together, and what follows from
// them. One thread, at program start.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/load_client.h"
#include "apps/bench/metrics.h"
#include "apps/bench/workload.h"
#include "apps/common/sampling_flags.h"
#include "core/latency_limits.h"
#include "net/url.h"

namespace millrace::apps {

enum class Backend { kOpenAi, kOpenAiChat, kVllm };

using KeyValues = std::vector<std::pair<std::string, std::string>>;

struct BenchServeFlags {
  // Server
  std::string base_url, host = "127.0.0.1", endpoint, model, served_model_name, api_key;
  int port = 8000;
  Backend backend = Backend::kOpenAi;
  bool insecure = false;
  KeyValues headers;
  std::string request_id_prefix;
  int ready_check_timeout_s = 0;  // 0: it must be ready at once
  // Workload and sampling
  WorkloadOptions workload;
  std::string tokenizer;  // a folder; empty: prompts stay token ids
  int64_t seed = 0;
  SamplingFlags sampling = {.params = {.temperature = 0}, .given = {"temperature"}};
  std::optional<int> logprobs;
  Json extra_body = Json::object();
  bool ignore_eos = false;
  // Traffic
  std::optional<RampShape> ramp_shape;
  std::optional<int> ramp_start_rps, ramp_end_rps;
  std::optional<int> max_concurrency;
  int num_warmups = 0;
  // Report
  LatencyLimits slo;
  Goodput goodput;  // the same limits in vLLM's syntax
  std::string percentile_metrics = "ttft,tpot,itl", metric_percentiles = "99";
  bool save_result = false, append_result = false, save_detailed = false, disable_progress = false;
  std::string result_dir, result_filename, label;
  KeyValues metadata;
  std::set<std::string> given;

  bool chat() const;
  bool saves() const { return save_result || append_result; }
  std::string backend_name() const { return chat() ? "openai-chat" : "openai"; }
};

// Refuses what would have no effect. An error is the user's.
Status ValidateBenchServe(const BenchServeFlags& flags);

// REQUIRES of those below: ValidateBenchServe is OK.
Result<net::Url> BaseUrlOf(const BenchServeFlags& flags);
// The workload's options with its seed and its rising rate.
WorkloadOptions WorkloadOf(const BenchServeFlags& flags);
// All but the model: the address, the headers and what each body has beside its prompt.
Result<LoadTarget> TargetOf(const BenchServeFlags& flags);
Result<ReportOptions> ReportOptionsOf(const BenchServeFlags& flags);

}  // namespace millrace::apps
