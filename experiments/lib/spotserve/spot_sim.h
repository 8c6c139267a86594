// A cloud whose machines come and go, on a virtual clock: availability and arrival traces run
// against SpotServe, its two baselines and Millrace's own policy. plan/spot makes the decisions;
// only machines, links and iterations are modelled.
//
// Deterministic: the report is a function of the arguments. One thread per call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "experiments/lib/spotserve/mapping.h"
#include "experiments/lib/spotserve/migration.h"
#include "experiments/lib/spotserve/pipeline.h"
#include "experiments/lib/spotserve/regret_rule.h"
#include "sim/load/availability.h"

namespace millrace::experiments::spotserve {

enum class System : uint8_t {
  // The released SpotServe: batches that run to completion, a load set by hand, and a change
  // whenever the optimum changes. Everything stops for a change unless it only adds pipelines; KV
  // moves.
  kSpotServe,
  kReparallelization,  // the same optimizer; restarts everything, weights from storage, no KV
  kRerouting,          // P and M fixed; pipelines that lose a machine are dropped, new ones loaded
  // Millrace's policy: measured load, tie band and hysteresis. Only pipelines that change stop, cut
  // at an iteration. Weights go to empty machines beforehand. Each request's KV is copied or its
  // tokens are replayed.
  kMillrace,
};
std::string_view SystemName(System system);

enum class Batching : uint8_t { kToCompletion, kContinuous };

struct SpotModel {
  plan::spot::Profile profile;
  plan::spot::SearchSpace space;
  ModelBytes bytes;
  int input_tokens = 512;
};

struct SpotCloud {
  int devices_per_instance = 4;
  double grace_s = 30;                // from notice to loss, and from notice to arrival
  double spot_usd_per_hour = 1.9046;  // g4dn.12xlarge, as in the released scripts
  double on_demand_usd_per_hour = 3.912;
  // Machines that arrive exactly this long after a loss count as bought replacements.
  std::optional<double> on_demand_after_loss_s;
  bool all_on_demand = false;
  // Assumed, not published: how fast one machine reads weights from storage, and how long an engine
  // process takes to start and connect to its peers.
  double storage_bytes_per_s = 1e9;
  double engine_start_s = 5;
  MigrationOptions migration;
};

struct SpotOptions {
  System system = System::kSpotServe;
  Batching batching = Batching::kToCompletion;
  // The load to prepare for, which the released scripts set by hand. Events of the trace change it.
  // kMillrace uses it as a forecast for the first minute and measures from then on.
  double required_per_s = 0.4;
  RegretRuleOptions controller;
  double margin_s = 1;          // kMillrace: reserved before a deadline
  double tick_s = 5;            // kMillrace: how often it reconsiders
  double drain_limit_s = 7200;  // after the trace's end, for the remaining queue
};

struct SpotReport {
  size_t requests = 0, finished = 0;
  double mean_s = 0, p50_s = 0, p99_s = 0;  // request latency, arrival to last token
  int64_t tokens = 0;                       // prompt and answer of finished requests
  int64_t lost_steps = 0;                   // decoded and later decoded again
  int64_t replayed_tokens = 0;              // decoded once, but their KV was recomputed
  int reconfigurations = 0;
  int64_t moved_bytes = 0, moved_kv_bytes = 0, storage_bytes = 0;
  double pause_s = 0;                          // pipeline-seconds of machines waiting for a change
  double spot_hours = 0, on_demand_hours = 0;  // all live machines, with spares
  double usd = 0;
  double usd_per_token = 0;
  double held_usd = 0;            // after releasing machines beyond the need plus two spares
  std::vector<double> latency_s;  // by request, without unfinished ones
};

// `arrivals_s` ascends. kInvalidArgument if no machine of the trace could ever hold the model.
Result<SpotReport> SimulateSpot(const SpotModel& model, const SpotCloud& cloud,
                                const sim::AvailabilityTrace& trace,
                                std::span<const double> arrivals_s, const SpotOptions& options);

}  // namespace millrace::experiments::spotserve
