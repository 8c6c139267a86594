#include "serve/observe/slo_metrics.h"

#include <fmt/format.h>
#include <prometheus/gauge.h>

#include <algorithm>
#include <cmath>

namespace millrace::serve {
namespace {

constexpr double kRetryMostS = 600;

// The part of the time after the first token that was longest.
const char* LongestAfterFirst(const RequestPhases& phases) {
  if (phases.decode >= phases.hold && phases.decode >= phases.transfer) return "decode";
  return phases.hold >= phases.transfer ? "hold" : "transfer";
}

}  // namespace

SloMetrics::SloMetrics(const LatencyLimits& limits,
                       const std::map<std::string, std::string>& labels,
                       prometheus::Registry& registry)
    : limits_(limits),
      requests_(prometheus::BuildCounter()
                    .Name("millrace_slo_requests_total")
                    .Help("Requests that were judged by the limits of --slo: all but those that "
                          "their client aborted or got wrong.")
                    .Labels(labels)
                    .Register(registry)
                    .Add({})),
      kept_(prometheus::BuildCounter()
                .Name("millrace_slo_requests_kept_total")
                .Help("Requests that kept all limits; their rate is the goodput.")
                .Labels(labels)
                .Register(registry)
                .Add({})),
      missed_(prometheus::BuildCounter()
                  .Name("millrace_slo_requests_missed_total")
                  .Help("Requests that missed a limit, by the phase that took the most of the time "
                        "that it limits, or failed or refused.")
                  .Labels(labels)
                  .Register(registry)) {
  auto& limit_seconds = prometheus::BuildGauge()
                            .Name("millrace_slo_limit_seconds")
                            .Help("The limits of --slo.")
                            .Labels(labels)
                            .Register(registry);
  const auto declare = [&](const char* limit, std::optional<double> seconds,
                           std::initializer_list<const char*> phases) {
    if (!seconds) return;
    limit_seconds.Add({{"limit", limit}}).Set(*seconds);
    for (const char* phase : phases) missed_.Add({{"limit", limit}, {"phase", phase}});
  };
  declare("ttft", limits.ttft_s, {"queue", "prefill", "refused", "failed"});
  declare("tpot", limits.tpot_s, {"hold", "transfer", "decode", "refused", "failed"});
  prometheus::BuildGauge()
      .Name("millrace_slo_attainment_target")
      .Help("The share of requests that must keep all limits.")
      .Labels(labels)
      .Register(registry)
      .Add({})
      .Set(limits.share());
}

void SloMetrics::Answered(const AnsweredRequest& request) {
  requests_.Increment();
  const bool keeps_ttft = limits_.KeepsTtft(request.ttft.seconds());
  const double tpot_s =
      request.tokens > 1 ? request.after_first.seconds() / (request.tokens - 1) : 0;
  const bool keeps_tpot = limits_.KeepsTpot(tpot_s);
  // What is neither prefill nor queueing in the controller is the front end's, before both.
  const Duration prefill = request.phases.prefill;
  if (!keeps_ttft) Miss("ttft", prefill > request.ttft - prefill ? "prefill" : "queue");
  if (!keeps_tpot) Miss("tpot", LongestAfterFirst(request.phases));
  if (keeps_ttft && keeps_tpot) kept_.Increment();
}

void SloMetrics::MissAll(const char* phase) {
  requests_.Increment();
  if (limits_.ttft_s) Miss("ttft", phase);
  if (limits_.tpot_s) Miss("tpot", phase);
}

void SloMetrics::Miss(const char* limit, const char* phase) {
  missed_.Add({{"limit", limit}, {"phase", phase}}).Increment();
}

std::optional<ApiError> EarlyRefusal(const LatencyLimits& limits, double factor,
                                     Duration predicted_ttft) {
  const double most_s = factor * *limits.ttft_s, predicted_s = predicted_ttft.seconds();
  if (predicted_s <= most_s) return std::nullopt;
  const int retry_s =
      static_cast<int>(std::clamp(std::ceil(predicted_s - most_s), 1.0, kRetryMostS));
  ApiError error = FromStatus(ResourceExhausted(fmt::format(
      "The server is overloaded: the first token is predicted after {:.3g} s, and requests are "
      "refused beyond {:.3g} s; try again in {} s.",
      predicted_s, most_s, retry_s)));
  error.retry_after_s = retry_s;
  return error;
}

}  // namespace millrace::serve
