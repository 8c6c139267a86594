// Backend: what every request of a loaded model shares. Made by Service::Ready; held by the
// requests that use it. Immutable but for its thread-safe parts.
#pragma once

#include "base/clock.h"
#include "serve/directory.h"
#include "serve/metrics.h"
#include "serve/request.h"
#include "serve/service.h"
#include "serve/worker_pool.h"

namespace millrace::serve {

struct Backend {
  ServedModel model;
  ParseContext context;
  ModelMetrics metrics;
  Directory& directory;  // these three are the service's
  WorkerPool& workers;
  const Clock& clock;
  int64_t created = 0;  // Unix seconds
};

}  // namespace millrace::serve
