// SloMetrics: counts the requests that kept or missed the limits of --slo, each by its own TTFT and
// its own mean TPOT, and what the time of those went into that missed one. Also decides which
// requests are refused early. Any thread.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/registry.h>

#include <map>
#include <optional>
#include <string>

#include "base/clock.h"
#include "core/latency_limits.h"
#include "core/output.h"
#include "serve/http/api_error.h"

namespace millrace::serve {

// What a client saw of one answer.
struct AnsweredRequest {
  Duration ttft;         // from the arrival at the front end
  Duration after_first;  // until the last token
  int tokens = 0;        // of the longest sequence
  RequestPhases phases;
};

class SloMetrics {
 public:
  // Its families are in `registry`, which outlives it, with these labels.
  SloMetrics(const LatencyLimits& limits, const std::map<std::string, std::string>& labels,
             prometheus::Registry& registry);

  void Answered(const AnsweredRequest& request);
  // It got an error that was not its client's fault, or was refused because of the load: it misses
  // every limit.
  void Failed() { MissAll("failed"); }
  void Refused() { MissAll("refused"); }

 private:
  void MissAll(const char* phase);
  void Miss(const char* limit, const char* phase);

  const LatencyLimits limits_;
  prometheus::Counter& requests_;
  prometheus::Counter& kept_;
  prometheus::Family<prometheus::Counter>& missed_;
};

// The answer to a request whose first token is predicted for later than `factor` times the limit.
// nullopt: it is not refused. REQUIRES: limits.ttft_s.
std::optional<ApiError> EarlyRefusal(const LatencyLimits& limits, double factor,
                                     Duration predicted_ttft);

}  // namespace millrace::serve
