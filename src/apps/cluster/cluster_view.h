// ClusterView: the answer of GET /cluster/status as a struct, and as text for people. A field that
// another version of the server omits or sends with another type is empty, not an error. Values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "core/plan.h"
#include "cost/profile.h"

namespace millrace::apps {

struct WorkerView {
  std::string name, address, device, state, note;
  std::vector<LayerRange> layers;
  int rank = 0, ranks = 1;
  int64_t weight_bytes = 0, kv_bytes = 0, batches = 0;
  double silent_s = 0;
  int64_t memory_bytes = 0;
  std::optional<int64_t> cores;
  std::string zone, numeric_class, fingerprint;
  std::optional<double> price_usd_per_hour;
  bool spot = false;
  std::optional<cost::ProfileRates> rates;
};
struct PipelineView {
  int64_t id = 0;
  std::vector<std::string> workers;  // by hop
  std::vector<LayerRange> layers;    // likewise
  std::string role, state, fingerprint;
  int64_t requests = 0, blocks_total = 0, blocks_used = 0;
};
struct EdgeView {
  std::string from, to, phase;
  double planned_tokens_per_s = 0;
  int64_t tokens = 0;
};
struct ClusterView {
  std::string model;
  int64_t term = 0, epoch = 0;
  std::string missing;         // why no request can be served; empty: requests can
  std::string degraded;        // which stage is not up although requests can be served; empty: none
  bool changing = false;       // to another plan
  std::string given_up;        // why the last change of plan was given up; empty: it was not
  int64_t given_up_epoch = 0;  // the epoch of that plan
  std::vector<WorkerView> workers;
  std::vector<PipelineView> pipelines;
  std::vector<EdgeView> edges;  // of the plan; empty before the first request
  int64_t requests = 0, waiting = 0, moving = 0;
  std::vector<std::pair<std::string, int64_t>> counters;
};

ClusterView ReadClusterView(const Json& status);
// A table of workers, one of pipelines, one of the plan's edges if it has several routes, a line of
// requests. Text from the server is made printable.
std::string FormatClusterView(const ClusterView& view);
// "0-5, 8"; "-" for none. The end is included.
std::string LayersText(const std::vector<LayerRange>& layers);

}  // namespace millrace::apps
