// Results of a serving benchmark: from one Outcome per request to the table and the JSON of `vllm
// bench serve`, so that results can be compared line by line. Pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "core/latency_limits.h"

namespace millrace::apps {

struct Outcome {
  std::string error;  // empty: succeeded
  int prompt_tokens = 0;
  int output_tokens = 0;
  double start_s = 0;          // when it was sent, from the start of the run
  double ttft_s = 0;           // to the first token
  double latency_s = 0;        // to the end
  std::vector<double> itls_s;  // between consecutive pieces of the stream
  std::string text;

  bool ok() const { return error.empty(); }
  // Time per output token after the first; 0 with fewer than two.
  double TpotSeconds() const {
    return output_tokens > 1 ? (latency_s - ttft_s) / (output_tokens - 1) : 0;
  }
};

// The limits that a request must meet to count as good (DistServe's goodput): those of --slo, and
// the end-to-end latency that vLLM's --goodput also limits.
struct GoodputLimits {
  LatencyLimits limits;
  std::optional<double> e2el_s;
  bool any() const { return limits.any() || e2el_s; }
  bool Holds(const Outcome& outcome) const;
};
// Parses {"ttft:200", "tpot:50"}, in milliseconds.
Result<GoodputLimits> ParseGoodputLimits(const std::vector<std::string>& pairs);

struct ReportOptions {
  double duration_s = 0;
  std::optional<int> max_concurrency;
  double request_rate = 0;  // infinity: all at once
  GoodputLimits goodput;
  std::vector<std::string> metrics = {"ttft", "tpot", "itl"};  // and "e2el"
  std::vector<double> percentiles = {99};
  bool orca = false;  // adds Orca's median of latency per generated token (OSDI'22, 6.2)
};
// Parse "ttft,tpot,itl,e2el" and "50,99.9".
Result<std::vector<std::string>> ParseMetricNames(const std::string& text);
Result<std::vector<double>> ParsePercentiles(const std::string& text);

struct Report {
  std::string table;
  Json json;  // with the per-request lists
};
Report MakeReport(const std::vector<Outcome>& outcomes, const ReportOptions& options);

}  // namespace millrace::apps
