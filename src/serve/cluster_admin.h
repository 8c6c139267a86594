// ClusterAdmin: what operators ask of a running cluster and tell it, behind /cluster. A controller
// has one; a server that computes in its own process has none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "core/ids.h"
#include "core/plan.h"

namespace millrace::serve {

// A count since the controller's start, for /metrics.
struct ClusterCounter {
  std::string metric, help;
  uint64_t value = 0;
};

// Any thread; every call is quick. What takes time goes on after it and shows in the status.
class ClusterAdmin {
 public:
  virtual ~ClusterAdmin() = default;

  // The object that docs/http-api.md describes under GET /cluster/status.
  virtual Json Describe() = 0;

  // Each only grows.
  virtual std::vector<ClusterCounter> Counters() { return {}; }

  // Errors are one line for the operator: kNotFound (no such worker or request), kInvalidArgument,
  // kFailedPrecondition (not now, and why).
  // The plan's nodes are workers, `workers` their names by node index; `text` says the same.
  virtual Status ApplyPlan(Plan plan, std::vector<std::string> workers,
                           const std::string& text) = 0;
  // Gives the worker's layers to others and no new ones to it.
  virtual Status Drain(std::string_view worker) = 0;
  // Moves a running request, with its KV, to pipelines over that worker.
  virtual Status Migrate(RequestId request, std::string_view worker) = 0;
};

}  // namespace millrace::serve
