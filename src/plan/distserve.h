// DistServe's placement search (OSDI'24, section 4), widened: how many instances of which
// parallelism prefill and decode, whether to separate them at all, and at what ratio, chosen for
// the whole cluster after rounding to whole instances. The goodput of a candidate comes from an
// Evaluator callback, so the search knows no simulator. Pure; any thread, the callback permitting.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/goodput.h"

namespace millrace::plan {

struct Parallel {
  int tensor = 1;    // devices that share each layer, inside one node
  int pipeline = 1;  // stages

  int devices() const { return tensor * pipeline; }
  friend bool operator==(const Parallel&, const Parallel&) = default;
};

enum class ServingMode { kDisaggregated, kColocated, kChunked };
const char* ServingModeName(ServingMode mode);

// Instances that serve together. Several like it may stand side by side.
struct DistServeUnit {
  ServingMode mode = ServingMode::kDisaggregated;
  Parallel prefill, decode;       // colocated and chunked: prefill alone counts
  int prefills = 1, decodes = 1;  // one of them 0: that half is judged alone
  // KV inside nodes: every pipeline is cut into so many segments, one per node, and the prefill and
  // decode segments of the same layers share a node (Algorithm 2).
  int segments = 1;
  bool kv_across_nodes = false;  // Algorithm 1: KV goes over the network

  int devices() const;
  std::string ToString() const;  // "2 x prefill TP2 PP1 + 3 x decode TP1 PP1, KV inside nodes"
  friend bool operator==(const DistServeUnit&, const DistServeUnit&) = default;
};

// Latencies that the needed share of requests stays within when the unit is all but idle.
struct UnloadedLatency {
  double ttft_s = 0, tpot_s = 0;
};

struct DistServeEvaluator {
  // Joint goodput of `units` of them behind one dispatcher; `guess` is a rate near the answer.
  // Halves alone count their own limit only.
  std::function<Goodput(const DistServeUnit&, int units, double guess)> goodput;
  std::function<UnloadedLatency(const DistServeUnit&)> unloaded;
};

// What KV transfers may use. Limits instead of a yes or no: a slow network bounds the rate.
struct KvLinks {
  double bytes_per_request = 0;           // mean prompt times bytes per token
  std::optional<double> nic_bytes_per_s;  // out of one node; unset: no limit
  bool across_nodes = true;               // false: no KV leaves a node
};

struct DistServeProblem {
  static constexpr int kNodesMax = 128, kDevicesPerNodeMax = 64;

  int nodes = 1, devices_per_node = 1;
  // Those whose weights fit, whose stages divide the layers and whose width divides the heads.
  std::vector<Parallel> parallels;
  KvLinks kv;
  // The rate to serve with as few devices as possible; unset: serve as much as the cluster can.
  std::optional<double> requests_per_s;
  double ttft_s = 0, tpot_s = 0;  // for messages; the evaluator holds the limits
};

struct DistServeOptions {
  static constexpr int kPoolMax = 8;

  bool disaggregated = true, colocated = true, chunked = true;
  // How much better a candidate may do than its halves alone promise (they are judged in groups of
  // up to kPoolMax alike). Those that promise less than the best by this factor are not run.
  double slack = 1.1;
  int evaluations_max = 400;  // of whole units; beyond: the answer says so
};

// Rounded up to whole units, at least one; what no cluster has is cut to kUnitsMost.
inline int WholeUnits(double units) {
  constexpr double kUnitsMost = 1 << 20;
  return static_cast<int>(std::clamp(std::ceil(units), 1.0, kUnitsMost));
}

struct DistServeCandidate {
  DistServeUnit unit;
  int units = 0;              // side by side
  double requests_per_s = 0;  // deployed: of all units together
  double half_width = 0;      // 95 %, of requests_per_s
  bool evaluated = false;     // false: requests_per_s is a bound from its halves alone
  std::string limited_by;     // "TTFT", "TPOT", "KV over the network"
  std::string why_lost;       // "" for the best

  int devices() const { return units * unit.devices(); }
  double per_device() const { return devices() == 0 ? 0 : requests_per_s / devices(); }
};

struct DistServePlan {
  static constexpr size_t kOthersMax = 16;

  DistServeCandidate best;
  // The best of the rest, at least one per serving mode where there is one, best first.
  std::vector<DistServeCandidate> others;
  int candidates = 0, evaluations = 0;
  bool complete = true;  // false: evaluations_max was reached
};

// kFailedPrecondition: no candidate meets the limits (names the nearest limits that one meets) or
// none carries the rate (names the highest that one does).
Result<DistServePlan> SearchDistServe(const DistServeProblem& problem,
                                      const DistServeEvaluator& evaluator,
                                      const DistServeOptions& options = {});

// The algorithms as published, for comparison: goodput per device decides, replicas are rounded up
// afterwards, each half by itself. The answer may need more devices than there are.
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
