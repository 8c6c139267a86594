// ModelContext: what every request of a loaded model shares. Made by Service::Ready; held by the
// requests that use it. Immutable but for its thread-safe parts.
#pragma once

#include "base/clock.h"
#include "serve/metrics.h"
#include "serve/request.h"
#include "serve/request_registry.h"
#include "serve/service.h"
#include "serve/worker_pool.h"

namespace millrace::serve {

struct ModelContext {
  ServedModel model;
  ParseContext context;
  ModelMetrics metrics;
  RequestRegistry& registry;  // these three are the service's
  WorkerPool& workers;
  const Clock& clock;
  int64_t created = 0;  // Unix seconds
};

}  // namespace millrace::serve
