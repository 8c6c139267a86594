// ClusterAdmin: the interface behind /cluster, with which operators inspect and change a running
// cluster. A controller has one; a server that runs the model in its own process has none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "core/ids.h"
#include "core/worker_plan.h"

namespace millrace::serve {

// A family of /metrics. A counter counts since the controller's start.
struct ClusterMetric {
  struct Series {
    std::map<std::string, std::string> labels;
    double value = 0;
  };
  std::string name, help;
  bool counter = true;  // otherwise a gauge
  std::vector<Series> series;
};

// Any thread. Calls return quickly; longer work continues in the background and appears in the
// status.
class ClusterAdmin {
 public:
  virtual ~ClusterAdmin() = default;

  // The object that docs/http-api.md describes under GET /cluster/status.
  virtual Json Describe() = 0;

  // The object that docs/http-api.md describes under GET /cluster/machines.
  virtual Json Machines() { return Json::object(); }

  // The object that docs/http-api.md describes under GET /cluster/decisions.
  virtual Json Decisions() { return Json::object(); }

  // All from one snapshot.
  virtual std::vector<ClusterMetric> Metrics() { return {}; }

  // Errors are one line for the operator: kNotFound (no such worker or request), kInvalidArgument,
  // kFailedPrecondition (not possible now; the text says why).

  // `as_sent`: the file in which the plan came, to be kept as it is; "" if it was made in this
  // process. Returns the epoch under which the change to the plan has begun.
  virtual Result<int64_t> ApplyPlan(WorkerPlan plan, std::string as_sent) = 0;
  // Moves the worker's layers to other workers and assigns no new ones to it.
  virtual Status Drain(std::string_view worker) = 0;
  // Moves a running request, with its KV, to pipelines that use that worker.
  virtual Status Migrate(RequestId request, std::string_view worker) = 0;
};

}  // namespace millrace::serve
