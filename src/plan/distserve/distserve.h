// DistServe's placement search (OSDI'24, section 4), extended. It chooses for the whole cluster,
// after rounding to whole instances: whether to separate prefill and decode, the parallelism and
// number of instances of each, and their ratio. The goodput of a candidate comes from an Evaluator
// callback, so the search does not depend on a simulator. Pure; any thread that the callback
// permits.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/distserve/goodput.h"

namespace millrace::plan {

struct Parallel {
  int tensor = 1;    // devices that share each layer, inside one node
  int pipeline = 1;  // stages

  int devices() const { return tensor * pipeline; }
  friend bool operator==(const Parallel&, const Parallel&) = default;
};

enum class ServingMode { kDisaggregated, kColocated, kChunked };
const char* ServingModeName(ServingMode mode);

// Instances that serve together. Several equal units may run side by side.
struct DistServeUnit {
  ServingMode mode = ServingMode::kDisaggregated;
  Parallel prefill, decode;       // colocated and chunked modes use prefill only
  int prefills = 1, decodes = 1;  // if one is 0, the other half is evaluated alone
  // KV inside nodes: every pipeline is cut into this many segments, one per node. The prefill and
  // decode segments of the same layers share a node (Algorithm 2).
  int segments = 1;
  bool kv_across_nodes = false;  // Algorithm 1: KV goes over the network

  int devices() const;
  std::string ToString() const;  // "2 x prefill TP2 PP1 + 3 x decode TP1 PP1, KV inside nodes"
  friend bool operator==(const DistServeUnit&, const DistServeUnit&) = default;
};

// Latencies that the required share of requests meets while the unit is almost idle.
struct UnloadedLatency {
  double ttft_s = 0, tpot_s = 0;
};

struct DistServeEvaluator {
  // Joint goodput of `units` units behind one dispatcher. `guess` is a rate near the answer. A half
  // alone is judged by its own limit only.
  std::function<Goodput(const DistServeUnit&, int units, double guess)> goodput;
  std::function<UnloadedLatency(const DistServeUnit&)> unloaded;
};

// Bandwidth for KV transfers. A slow network bounds the rate instead of forbidding a plan.
struct KvLinks {
  double bytes_per_request = 0;           // mean prompt times bytes per token
  std::optional<double> nic_bytes_per_s;  // out of one node; unset: unlimited
  bool across_nodes = true;               // false: no KV leaves a node
};

struct DistServeProblem {
  static constexpr int kNodesMax = 128, kDevicesPerNodeMax = 64;

  int nodes = 1, devices_per_node = 1;
  // Parallelisms whose weights fit, whose stages divide the layers and whose width divides the
  // heads.
  std::vector<Parallel> parallels;
  KvLinks kv;
  // The rate to serve with as few devices as possible. Unset: serve as much as the cluster can.
  std::optional<double> requests_per_s;
  double ttft_s = 0, tpot_s = 0;  // for messages; the evaluator holds the limits
};

struct DistServeOptions {
  static constexpr int kPoolMax = 8;

  bool disaggregated = true, colocated = true, chunked = true;
  // How much better a candidate may be than its halves alone promise (they are judged in groups of
  // up to kPoolMax alike). A candidate whose promise is worse than the best by more than this
  // factor is not run.
  double slack = 1.1;
  int evaluations_max = 400;  // of whole units; if reached, the answer says so
};

// Rounded up to whole units, at least one and at most kUnitsMost (more than any cluster has).
inline int WholeUnits(double units) {
  constexpr double kUnitsMost = 1 << 20;
  return static_cast<int>(std::clamp(std::ceil(units), 1.0, kUnitsMost));
}

struct DistServeCandidate {
  DistServeUnit unit;
  int units = 0;              // side by side
  double requests_per_s = 0;  // goodput of all units together
  double half_width = 0;      // of the 95 % interval of requests_per_s
  bool evaluated = false;     // false: requests_per_s is a bound from the halves alone
  std::string limited_by;     // "TTFT", "TPOT", "KV over the network"
  std::string why_lost;       // empty for the best

  int devices() const { return units * unit.devices(); }
  double per_device() const { return devices() == 0 ? 0 : requests_per_s / devices(); }
};

struct DistServePlan {
  static constexpr size_t kOthersMax = 16;

  DistServeCandidate best;
  // The next best, best first, with at least one per serving mode that has a candidate.
  std::vector<DistServeCandidate> others;
  int candidates = 0, evaluations = 0;
  bool complete = true;  // false: evaluations_max was reached
};

// Returns kFailedPrecondition if no candidate meets the limits (names the nearest limits that one
// meets) or none carries the rate (names the highest rate that one carries).
Result<DistServePlan> SearchDistServe(const DistServeProblem& problem,
                                      const DistServeEvaluator& evaluator,
                                      const DistServeOptions& options = {});

// The algorithms as published, for comparison. They maximise goodput per device and round up the
// replicas of each half separately afterwards, so the answer may need more devices than exist.
struct PublishedPlacement {
  DistServeUnit unit;  // Algorithm 1: prefills = n, decodes = m
  int units = 1;       // Algorithm 2: n
  int devices() const { return units * unit.devices(); }
};
Result<PublishedPlacement> Algorithm1(const DistServeProblem& problem,
                                      const DistServeEvaluator& evaluator);
Result<PublishedPlacement> Algorithm2(const DistServeProblem& problem,
                                      const DistServeEvaluator& evaluator);

}  // namespace millrace::plan
