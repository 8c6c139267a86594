#include "serve/observe/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <sstream>

namespace millrace::serve {
namespace {

using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kInterTokenBuckets = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                    .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const Buckets kRequestBuckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kHttpBuckets = {.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300};
const Buckets kCountOfSequencesBuckets = {1, 2, 5, 10, 20};

// 1, 2, 5, 10, 20, 50 ... up to `limit`.
Buckets OneTwoFive(int limit) {
  Buckets buckets;
  for (double decade = 1; decade <= limit; decade *= 10) {
    for (double mantissa : {1.0, 2.0, 5.0}) {
      if (mantissa * decade <= limit) buckets.push_back(mantissa * decade);
    }
  }
  return buckets;
}

std::string KnownMethod(std::string_view method) {
  for (std::string_view known : {"GET", "POST", "OPTIONS", "HEAD", "PUT", "DELETE", "PATCH"}) {
    if (method == known) return std::string(known);
  }
  return "other";
}

// "2xx": vLLM's dashboards sum by class of status.
std::string StatusClass(int status) { return std::to_string(status / 100) + "xx"; }

// Frequent polls by monitors would hide the requests of clients. vLLM leaves these routes out too.
bool IsProbe(std::string_view handler) {
  return handler == "/health" || handler == "/ready" || handler == "/version" ||
         handler == "/metrics";
}

}  // namespace

HttpMetrics::HttpMetrics()
    : requests_(prometheus::BuildCounter()
                    .Name("http_requests_total")
                    .Help("HTTP requests, by method, route and class of the status; 4xx "
                          "includes clients that disconnected.")
                    .Register(registry_)),
      durations_(prometheus::BuildHistogram()
                     .Name("http_request_duration_seconds")
                     .Help("From the request's arrival to the last byte of its response.")
                     .Register(registry_)) {}

void HttpMetrics::Observe(std::string_view method, std::string_view handler, int status,
                          Duration took) {
  if (IsProbe(handler)) return;
  const std::string known = KnownMethod(method);
  requests_
      .Add({{"method", known}, {"handler", std::string(handler)}, {"status", StatusClass(status)}})
      .Increment();
  durations_.Add({{"method", known}, {"handler", std::string(handler)}}, kHttpBuckets)
      .Observe(took.seconds());
}

prometheus::Histogram& ModelMetrics::AddHistogram(const std::string& name, const std::string& help,
                                                  const Buckets& buckets) {
  return prometheus::BuildHistogram()
      .Name(name.starts_with("millrace_") ? name : "vllm:" + name)
      .Help(help)
      .Labels(labels_)
      .Register(registry_)
      .Add({}, buckets);
}

ModelMetrics::ModelMetrics(std::string model_name, int max_model_len,
                           std::map<std::string, std::string> cache_config,
                           const LatencyLimits& limits)
    : labels_({{"model_name", std::move(model_name)}, {"engine", "0"}}),
      cache_config_(std::move(cache_config)),
      success_(prometheus::BuildCounter()
                   .Name("vllm:request_success_total")
                   .Help("Finished requests, by the finish reason that the client saw.")
                   .Labels(labels_)
                   .Register(registry_)),
      first_token_(AddHistogram("time_to_first_token_seconds",
                                "From arrival at the front end to the first token.",
                                kFirstTokenBuckets)),
      inter_token_(AddHistogram("inter_token_latency_seconds", "Between two tokens of a sequence.",
                                kInterTokenBuckets)),
      per_output_token_(AddHistogram("request_time_per_output_token_seconds",
                                     "Mean time per token after the first, per request.",
                                     kInterTokenBuckets)),
      e2e_(AddHistogram("e2e_request_latency_seconds", "From arrival to the last token.",
                        kRequestBuckets)),
      queue_(AddHistogram("request_queue_time_seconds", "From arrival to being scheduled.",
                          kRequestBuckets)),
      inference_(AddHistogram("request_inference_time_seconds",
                              "From being scheduled to the last token.", kRequestBuckets)),
      prefill_(AddHistogram("request_prefill_time_seconds",
                            "From being scheduled to the first token.", kRequestBuckets)),
      decode_(AddHistogram("request_decode_time_seconds", "From the first token to the last.",
                           kRequestBuckets)),
      hold_(AddHistogram("millrace_request_hold_time_seconds",
                         "After the first token, with the KV elsewhere, until it had a place where "
                         "it decodes.",
                         kFirstTokenBuckets)),
      transfer_(AddHistogram("millrace_request_transfer_time_seconds",
                             "After that, until its KV had arrived there.", kFirstTokenBuckets)),
      prompt_tokens_(AddHistogram("request_prompt_tokens", "Tokens of the prompt.",
                                  OneTwoFive(max_model_len))),
      generation_tokens_(AddHistogram("request_generation_tokens", "Tokens generated.",
                                      OneTwoFive(max_model_len))),
      longest_generation_(AddHistogram("request_max_num_generation_tokens",
                                       "Tokens of the longest of the n sequences.",
                                       OneTwoFive(max_model_len))),
      computed_prefill_(AddHistogram("request_prefill_kv_computed_tokens",
                                     "Prompt tokens not found in the prefix cache.",
                                     OneTwoFive(max_model_len))),
      params_n_(AddHistogram("request_params_n", "The parameter n.", kCountOfSequencesBuckets)),
      params_max_tokens_(AddHistogram("request_params_max_tokens", "The parameter max_tokens.",
                                      OneTwoFive(max_model_len))) {
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    success_.Add({{"finished_reason", reason}});
  }
  if (limits.any()) slo_.emplace(limits, labels_, registry_);
}

void ModelMetrics::ObserveFirstToken(Duration since_arrival) {
  first_token_.Observe(since_arrival.seconds());
}

void ModelMetrics::ObserveInterToken(Duration gap) { inter_token_.Observe(gap.seconds()); }

void ModelMetrics::ObserveFinished(const FinishedRequest& request) {
  success_.Add({{"finished_reason", std::string(request.reason)}}).Increment();
  prompt_tokens_.Observe(request.prompt_tokens);
  generation_tokens_.Observe(request.generation_tokens);
  longest_generation_.Observe(request.longest_generation_tokens);
  computed_prefill_.Observe(request.prompt_tokens - request.cached_prompt_tokens);
  params_n_.Observe(request.n);
  params_max_tokens_.Observe(request.max_tokens);
  e2e_.Observe(request.e2e.seconds());
  const auto phases = request.times ? PhasesOf(*request.times) : std::nullopt;
  Judge(request, phases);
  if (!request.times || !request.times->first_scheduled) return;
  if (!phases) {
    queue_.Observe((*request.times->first_scheduled - request.times->arrived).seconds());
    return;
  }
  const double after_first = (*request.times->last_token - *request.times->first_token).seconds();
  queue_.Observe(phases->queue.seconds());
  prefill_.Observe(phases->prefill.seconds());
  hold_.Observe(phases->hold.seconds());
  transfer_.Observe(phases->transfer.seconds());
  decode_.Observe(after_first);
  inference_.Observe(phases->prefill.seconds() + after_first);
  if (request.longest_generation_tokens > 1) {
    per_output_token_.Observe(after_first / (request.longest_generation_tokens - 1));
  }
}

void ModelMetrics::Judge(const FinishedRequest& request,
                         const std::optional<RequestPhases>& phases) {
  if (!slo_ || request.reason == "abort") return;
  if (request.reason == "error") return slo_->Failed();
  if (!request.ttft || !phases) return;  // it asked for no token
  slo_->Answered({.ttft = *request.ttft,
                  .after_first = request.e2e - *request.ttft,
                  .tokens = request.longest_generation_tokens,
                  .phases = *phases});
}

void ModelMetrics::ObserveRefused() {
  if (slo_) slo_->Refused();
}

std::string RenderMetrics(const std::vector<prometheus::MetricFamily>& families) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return std::move(out).str();
}

}  // namespace millrace::serve
