// A cloud of machines that come and go, on a virtual clock: availability and arrival traces played
// against SpotServe, its two baselines and Millrace's own policy. The decisions are those of
// plan/spot; only machines, links and iterations are modelled.
//
// Deterministic: the report is a function of the arguments. One thread per call.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "plan/spot/controller.h"
#include "plan/spot/mapping.h"
#include "plan/spot/migration.h"
#include "sim/availability.h"
#include "sim/spot/pipeline.h"

namespace millrace::sim::spot {

enum class System : uint8_t {
  // The released SpotServe: batches to completion, a load given by hand, a change whenever the
  // optimum changes, everything stops for it except when only pipelines are added; KV moves.
  kSpotServe,
  kReparallelization,  // the same optimizer; restarts everything, weights from storage, no KV
  kRerouting,          // P and M fixed; pipelines that lose a machine are dropped, new ones loaded
  // Ours: measured load, tie band and hysteresis; only pipelines that change stop, cut at an
  // iteration; weights go to empty machines beforehand; per request KV copy or token replay.
  kMillrace,
};
std::string_view SystemName(System system);

enum class Batching : uint8_t { kToCompletion, kContinuous };

struct SpotModel {
  plan::spot::Profile profile;
  plan::spot::SearchSpace space;
  plan::spot::ModelBytes bytes;
  int input_tokens = 512;
};

struct SpotCloud {
  int devices_per_instance = 4;
  double grace_s = 30;                // from notice to the end, and from notice to arrival
  double spot_usd_per_hour = 1.9046;  // g4dn.12xlarge, as the released scripts have it
  double on_demand_usd_per_hour = 3.912;
  // Machines that arrive exactly this long after a loss were bought as its replacement.
  std::optional<double> on_demand_after_loss_s;
  bool all_on_demand = false;
  // Assumed, not published: how fast one machine reads weights from storage, and how long an
  // engine process takes to start and meet its peers.
  double storage_bytes_per_s = 1e9;
  double engine_start_s = 5;
  plan::spot::MigrationOptions migration;
};

struct SpotOptions {
  System system = System::kSpotServe;
  Batching batching = Batching::kToCompletion;
  // The load to prepare for: what the released scripts pass by hand. Events of the trace change it.
  // kMillrace takes it as a forecast for the first minute and measures from then on.
  double required_per_s = 0.4;
  plan::spot::ControllerOptions controller;
  double margin_s = 1;          // kMillrace: kept free before a deadline
  double tick_s = 5;            // kMillrace: how often it reconsiders
  double drain_limit_s = 7200;  // after the trace's end, for what is still queued
};

struct SpotReport {
  size_t requests = 0, finished = 0;
  double mean_s = 0, p50_s = 0, p99_s = 0;  // request latency, arrival to last token
  int64_t tokens = 0;                       // prompt and answer of finished requests
  int64_t lost_steps = 0;                   // decoded, then decoded again
  int64_t replayed_tokens = 0;              // decoded once, their KV computed again
  int reconfigurations = 0;
  int64_t moved_bytes = 0, moved_kv_bytes = 0, storage_bytes = 0;
  double pause_s = 0;  // pipeline-seconds in which machines waited for a change
  double spot_hours = 0, on_demand_hours = 0;  // all that was alive, spares included
  double usd = 0;
  double usd_per_token = 0;
  double held_usd = 0;            // with machines beyond need and two spares given back
  std::vector<double> latency_s;  // by request, unfinished ones left out
};

// `arrivals_s` ascends. kInvalidArgument: no machine of the trace could ever hold the model.
Result<SpotReport> SimulateSpot(const SpotModel& model, const SpotCloud& cloud,
                                const AvailabilityTrace& trace, std::span<const double> arrivals_s,
                                const SpotOptions& options);

}  // namespace millrace::sim::spot
