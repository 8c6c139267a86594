// The spans of a request that has ended, in OTLP's JSON form: one of the server, with attributes
// under the names of OpenTelemetry's gen_ai conventions that other servers use, and one below it
// for each entry of its time account. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "serve/observe/request_registry.h"

namespace prometheus {
struct MetricFamily;
}

namespace millrace::serve {

// REQUIRES: the entry has ended, with an account and a trace. `unix_ns_of_zero`: the wall clock at
// Time{}.
std::vector<Json> SpansOf(const RegistryEntry& entry, const std::string& model,
                          int64_t unix_ns_of_zero);

struct SpanCounters {
  uint64_t sent = 0;
  uint64_t dropped = 0;  // the queue was full, or the collector did not take them
};
std::vector<prometheus::MetricFamily> SpanMetrics(const SpanCounters& counters);

// Takes the spans of requests to a collector. Any thread; must not block.
class SpanSink {
 public:
  virtual ~SpanSink() = default;
  virtual void Send(std::vector<Json> spans) = 0;
  virtual SpanCounters counters() const = 0;
};

}  // namespace millrace::serve
