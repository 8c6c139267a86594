// ModelContext: the state that all requests of a loaded model share. Service::Ready makes it; the
// service and its requests own it together. Immutable except for its thread-safe parts.
#pragma once

#include <optional>

#include "base/clock.h"
#include "core/latency_limits.h"
#include "serve/generation/served_model.h"
#include "serve/generation/stream_pings.h"
#include "serve/http/worker_pool.h"
#include "serve/observe/metrics.h"
#include "serve/observe/request_registry.h"
#include "serve/request/request.h"

namespace millrace::serve {

class RequestLog;

struct ModelContext {
  ServedModel model;
  ParseContext context;
  ModelMetrics metrics;
  RequestRegistry& registry;  // owned by the service, as the next three
  WorkerPool& workers;
  const Clock& clock;
  StreamPings* pings = nullptr;  // null: silent streams stay silent
  RequestLog* log = nullptr;     // null: requests are not logged
  int64_t created = 0;           // Unix seconds
  LatencyLimits limits;
  std::optional<double> refuse_beyond;  // as of ServiceOptions
};

}  // namespace millrace::serve
