// ClusterView: the answer of GET /cluster/status as a struct, and as text for people. A field that
// another version of the server omits or sends with another type is empty, not an error. Values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/cluster/machines_view.h"
#include "base/json.h"
#include "core/plan.h"
#include "cost/profile.h"

namespace millrace::apps {

struct WorkerView {
  std::string name, address, device, state, note;
  std::string notice;  // "leaving in 23 s (aws: terminate)"; empty: none
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
struct StageView {
  std::vector<std::string> workers;  // by rank; empty: none is assigned
  LayerRange layers;
  std::string role;
  bool up = false;
  int64_t kv_blocks = 0, kv_blocks_used = 0, running = 0, waiting = 0;
};
struct EdgeView {  // counts since the plan is in force
  std::string from, to, phase;
  double planned_tokens_per_s = 0;
  int64_t tokens = 0, requests = 0, bytes = 0;
  double seconds = 0;
};
struct WaitingView {
  int64_t prefill = 0, decode = 0, transfer = 0;
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
  std::vector<StageView> stages;
  std::vector<EdgeView> edges;
  std::vector<LinkView> links;  // of the controller
  int64_t requests = 0, moving = 0;
  WaitingView waiting_for;
  std::vector<std::pair<std::string, int64_t>> counters;
};

// An earlier look at the same cluster. What happened since then is shown as rates.
struct EarlierView {
  ClusterView view;
  double seconds = 0;  // ago
};

ClusterView ReadClusterView(const Json& status);
// The picture of stages and flow (cluster_picture.h), tables of workers and machines, counters.
// Text from the server is made printable.
std::string FormatClusterView(const ClusterView& view);
// For a screen that is refreshed: the picture, workers that do not serve, counters. `earlier` may
// be unset.
std::string FormatClusterNow(const ClusterView& view, const std::optional<EarlierView>& earlier);
// "0-5, 8"; "-" for none. The end is included.
std::string LayersText(const std::vector<LayerRange>& layers);

}  // namespace millrace::apps
