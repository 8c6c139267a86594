// The latency of one pool at a rate of requests: prompts that queue along its routes, or outputs
// that are decoded in batches. Nine requests in ten must keep a limit, so a pool's latency is that
// of its slow routes and of busy moments, not the mean. Internal to the estimate; any thread.
#pragma once

#include <optional>
#include <string>

#include "plan/roles/pool_flow.h"
#include "plan/roles/role_problem.h"

namespace millrace::plan {

inline constexpr double kBusyMax = 0.95;  // beyond it, queues grow without bound

// What keeps a pool from a higher rate. A value that costs nothing to copy: a bisection makes many.
struct PoolLimit {
  const char* what = nullptr;  // null: nothing
  std::optional<int> node;

  bool any() const { return what != nullptr; }
  std::string Text(const RoleProblem& problem) const;
};

struct PoolLatency {
  double mean_s = 0, tail_s = 0;  // tail: of all but a tenth of the requests
  PoolLimit limit;                // none: all capacities suffice
};

// TTFT of the pool's prompts, and TPOT of its outputs.
PoolLatency PrefillAt(const RoleProblem& problem, const PoolFlow& pool, double requests_per_s);
PoolLatency DecodeAt(const RoleProblem& problem, const PoolFlow& pool, double requests_per_s);

// What the pool does not keep at this rate: a capacity, or its limit on latency. `kv_s`: how long
// the KV of a request takes from the prefill pool.
PoolLimit PrefillLimit(const RoleProblem& problem, const PoolFlow& pool, double requests_per_s);
PoolLimit DecodeLimit(const RoleProblem& problem, const PoolFlow& pool, double requests_per_s,
                      double kv_s);

}  // namespace millrace::plan
