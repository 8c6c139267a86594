#include "serve/observe/request_spans.h"

#include <fmt/format.h>
#include <prometheus/metric_family.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/rng.h"
#include "serve/observe/account_json.h"

namespace millrace::serve {
namespace {

// OTLP's numbers for them.
constexpr int kInternalSpan = 1, kServerSpan = 2, kErrorStatus = 2;

// 64-bit integers are strings in the JSON form of protocol buffers.
Json Text(std::string_view value) { return {{"stringValue", value}}; }
Json Int(int64_t value) { return {{"intValue", std::to_string(value)}}; }
Json Real(double value) { return {{"doubleValue", value}}; }

void Add(Json& attributes, const char* key, Json value) {
  attributes.push_back({{"key", key}, {"value", std::move(value)}});
}

Json Span(const TraceContext& trace, std::string span_id, const std::string& parent,
          std::string_view name, int kind, int64_t start_ns, int64_t end_ns, Json attributes) {
  Json span = {{"traceId", trace.trace_id},
               {"spanId", std::move(span_id)},
               {"name", name},
               {"kind", kind},
               {"startTimeUnixNano", std::to_string(start_ns)},
               {"endTimeUnixNano", std::to_string(end_ns)},
               {"attributes", std::move(attributes)}};
  if (!parent.empty()) span["parentSpanId"] = parent;
  return span;
}

void AddLatencies(const RegistryEntry& entry, Json& attributes) {
  Add(attributes, "gen_ai.latency.e2e", Real((entry.end() - entry.arrived).seconds()));
  if (!entry.times) return;
  if (entry.times->first_token) {
    Add(attributes, "gen_ai.latency.time_to_first_token",
        Real((*entry.times->first_token - entry.arrived).seconds()));
  }
  const auto phases = PhasesOf(*entry.times);
  if (!phases) return;
  Add(attributes, "gen_ai.latency.time_in_queue", Real(phases->queue.seconds()));
  Add(attributes, "gen_ai.latency.time_in_model_prefill", Real(phases->prefill.seconds()));
  Add(attributes, "gen_ai.latency.time_in_model_decode", Real(phases->decode.seconds()));
  Add(attributes, "gen_ai.latency.time_in_model_inference",
      Real((phases->prefill + phases->decode).seconds()));
}

Json RootAttributes(const RegistryEntry& entry, const std::string& model) {
  Json attributes = Json::array();
  Add(attributes, "gen_ai.request.id", Text(entry.response_id));
  Add(attributes, "gen_ai.request.model", Text(model));
  Add(attributes, "gen_ai.response.model", Text(model));
  Add(attributes, "gen_ai.request.max_tokens", Int(entry.asked.max_tokens));
  Add(attributes, "gen_ai.request.temperature", Real(entry.asked.temperature));
  Add(attributes, "gen_ai.request.top_p", Real(entry.asked.top_p));
  Add(attributes, "gen_ai.request.n", Int(entry.n));
  Add(attributes, "gen_ai.usage.prompt_tokens", Int(entry.prompt_tokens));
  Add(attributes, "gen_ai.usage.completion_tokens", Int(entry.generation_tokens));
  Add(attributes, "gen_ai.usage.num_sequences", Int(entry.n));
  AddLatencies(entry, attributes);
  Add(attributes, "http.route", Text(entry.route));
  Add(attributes, "millrace.request", Int(static_cast<int64_t>(entry.id.value())));
  Add(attributes, "millrace.finish_reason", Text(entry.finish_reason));
  return attributes;
}

Json PartAttributes(const TimeEntry& part) {
  Json attributes = Json::array();
  if (part.cause != TimeCause::kNone) {
    Add(attributes, "millrace.cause", Text(TimeCauseName(part.cause)));
  }
  const auto count = [&](const char* key, int64_t value) {
    if (value > 0) Add(attributes, key, Int(value));
  };
  count("millrace.steps", part.steps);
  count("millrace.tokens", part.tokens);
  count("millrace.other_requests", part.others);
  count("millrace.other_tokens", part.others_tokens);
  count("millrace.bytes", part.bytes);
  if (!part.from.empty()) Add(attributes, "millrace.from", Text(part.from));
  return attributes;
}

}  // namespace

std::vector<Json> SpansOf(const RegistryEntry& entry, const std::string& model,
                          int64_t unix_ns_of_zero) {
  const TraceContext& trace = *entry.trace;
  const auto unix_ns = [&](Time time) { return unix_ns_of_zero + time.ns; };
  const uint64_t seed = std::hash<std::string>()(trace.trace_id + trace.span_id) +
                        static_cast<uint64_t>(entry.prompt_index);
  const auto id_of = [&](uint64_t number) {
    return fmt::format("{:016x}", std::max<uint64_t>(HashCounter(seed, number), 1));
  };
  // The further prompts of a batch are below the first.
  const bool first = entry.prompt_index == 0;
  const std::string root = first ? trace.span_id : id_of(0);
  std::vector<Json> spans;
  spans.push_back(Span(trace, root, first ? trace.parent_id : trace.span_id, "llm_request",
                       kServerSpan, unix_ns(entry.arrived), unix_ns(entry.end()),
                       RootAttributes(entry, model)));
  if (entry.finish_reason == "error") spans.back()["status"] = {{"code", kErrorStatus}};
  for (const TimeEntry& part : WholeAccount(*entry.account, entry.arrived, entry.end())) {
    if (part.took == Duration{}) continue;
    // The parts of an entry may lie apart; its span begins with the first and is as long as all.
    spans.push_back(Span(
        trace, id_of(spans.size()), root, TimeUseName(part.use), kInternalSpan, unix_ns(part.begin),
        std::min(unix_ns(part.begin + part.took), unix_ns(entry.end())), PartAttributes(part)));
  }
  return spans;
}

std::vector<prometheus::MetricFamily> SpanMetrics(const SpanCounters& counters) {
  const auto counter = [](const char* name, const char* help, uint64_t value) {
    prometheus::ClientMetric metric;
    metric.counter.value = static_cast<double>(value);
    return prometheus::MetricFamily{name, help, prometheus::MetricType::Counter, {metric}};
  };
  return {counter("millrace_spans_sent_total", "Spans that the collector of --otlp-endpoint took.",
                  counters.sent),
          counter("millrace_spans_dropped_total",
                  "Spans that were dropped: too many waited, or the collector did not take them.",
                  counters.dropped)};
}

}  // namespace millrace::serve
