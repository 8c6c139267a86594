// A controller's status and counters, for operators, /metrics and tests. Values; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/control/layout/layout.h"
#include "cluster/control/parts/controller_counters.h"
#include "cluster/control/parts/edge_flows.h"
#include "cluster/control/parts/membership.h"
#include "core/plan.h"
#include "core/worker_messages.h"
#include "cost/profile.h"

namespace millrace::cluster {

struct WorkerStatus {
  WorkerId id;
  std::string name, device, control;
  std::string note;    // why it gets no layers; empty: it has some, or could get some
  bool usable = true;  // false: it cannot load layers
  bool draining = false;
  std::optional<MachineNotice> notice;  // that it has told, by the controller's clock
  std::optional<Duration> notice_left;  // until its deadline; 0: that has passed
  std::vector<LayerRange> layers;       // loaded
  int rank = 0, ranks = 1;              // within its stage
  int64_t memory_bytes = 0, weight_bytes = 0, kv_bytes = 0;
  uint64_t batches = 0;
  Duration silent;                         // since the last heartbeat
  std::string numeric_class, fingerprint;  // of what it computes; fingerprint "": not known
  std::string host_id;
  MachineFacts machine;
  std::shared_ptr<const cost::Profile> profile;  // null: none
};
struct LinkStatus {      // of one direction, as measured
  std::string from, to;  // workers, or "coordinator"
  double latency_s = 0, bytes_per_s = 0;
  Duration age;
};
struct PipelineStatus {
  PipelineId id;
  std::vector<std::string> workers;  // rank 0 of each hop
  std::vector<LayerRange> layers;
  StageRole role = StageRole::kBoth;
  std::string numeric_class, fingerprint;  // of its workers
  bool open = false, retiring = false;
  int64_t requests = 0;
  int blocks_total = 0, blocks_used = 0;
};

// A stage of the plan in force.
struct StageStatus {
  std::vector<std::string> workers;  // by rank; empty: none is assigned
  LayerRange layers;
  StageRole role = StageRole::kBoth;
  bool up = false;
  // Blocks of `block_size` tokens in all its layers. What other stages hold on the same worker is
  // not deducted.
  int kv_blocks = 0, kv_blocks_used = 0;
  int64_t running = 0, waiting = 0;  // requests in the pipelines that pass through it
};

// An edge of the plan in force, or one along which something has flowed.
struct EdgeStatus {
  std::string from, to;  // the worker of rank 0, "stage N" without one, "coordinator" or "other"
  EdgePhase phase = EdgePhase::kBoth;
  bool planned = false;             // it is in the plan
  double planned_tokens_per_s = 0;  // 0: the plan states no flow
  EdgeFlows::Flow since_start;      // of the controller
  EdgeFlows::Flow since_plan;       // is in force
};

// Requests that wait, by what they wait for.
struct WaitingStatus {
  int64_t prefill = 0;   // a place where their prompt is computed
  int64_t decode = 0;    // with their prompt's KV elsewhere, a place where they decode
  int64_t transfer = 0;  // the KV that is on its way to that place
};

struct ClusterStatus {
  Term term;
  int64_t epoch = 0;
  Plan plan;
  std::optional<std::string> missing;   // why no request can be served
  std::optional<std::string> degraded;  // which stage is down although requests can be served
  bool changing = false;                // to another plan
  std::optional<GivenUpPlan> given_up;  // the last change of plan, if it was given up
  std::vector<WorkerStatus> workers;
  // Workers that were lost because they stand still: their processes must be restarted.
  std::vector<Membership::Still> still;
  std::vector<PipelineStatus> pipelines;
  std::vector<StageStatus> stages;
  std::vector<EdgeStatus> edges;  // the plan's first, in its order
  std::vector<LinkStatus> links;
  int64_t requests = 0, waiting = 0, moving = 0;
  WaitingStatus waiting_for;
  bool cross_class_replay = false;  // as of PlacementOptions
  ServerSizes server;               // of its schedulers
  ControllerCounters counters;
  std::map<NoticeOrigin, uint64_t> notices;  // that workers got, since the controller's start
};

}  // namespace millrace::cluster
