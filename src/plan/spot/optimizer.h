// Which parallel configuration to run on so many devices for so much load: SpotServe's adaptive
// optimizer (Algorithm 1). Two rules over one search space:
//
//   OptimizeAsPublished  the released solver's: the smallest l_exe of those that carry the load,
//                        the greatest throughput when none does; all devices spread over D.
//   Optimize             the same with the paper's "similar latency, fewer instances" made exact
//                        (a tie band), pipelines no more than needed, and a limit of instances that
//                        may lie above those at hand.
//
// Pure functions of their arguments; any thread.
#pragma once

#include <optional>
#include <vector>

#include "plan/spot/profile.h"

namespace millrace::plan::spot {

// How an engine spends its time on a batch.
enum class BatchRule : uint8_t {
  kToCompletion,  // SpotServe's: B requests together, to the last token
  // Iterations of B requests, dealt to as many lanes as there are stages; requests come and go one
  // by one. Micro-batches play no part.
  kContinuous,
};

struct SearchSpace {
  int devices_min = 1;           // one pipeline's: the model does not fit on fewer
  int batch_max = 4;             // a power of two
  int output_tokens = 128;       // S_out
  int devices_per_instance = 1;  // machines come and go whole
  BatchRule batching = BatchRule::kToCompletion;
};

struct Candidate {
  ParallelConfig config;
  double execution_ms = 0;
  double throughput_per_s = 0;
  bool carries_load = false;  // false: the fallback
  double waiting_ms = 0;      // l_sch, where it was asked for
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// None: not even one pipeline fits on `devices`.
std::optional<Candidate> OptimizeAsPublished(const Profile& profile, const SearchSpace& space,
                                             int devices, double requests_per_s);

struct OptimizeOptions {
  double tie_band = 0.05;  // latencies within this share of the best count as equal
  double headroom = 1;     // carry this multiple of the load
  // The squared coefficient of variation of the gaps between arrivals: with it the latency that is
  // minimised is l_exe + l_sch, as the paper has it; without it l_exe alone, as its code has it.
  std::optional<double> arrival_variation;
  // Machines kept ready beyond the need anyway: pipelines are added while they fit on them.
  int serving_spares = 0;
};

// None: not even one pipeline fits on `devices_max`, the most that could be had.
std::optional<Candidate> Optimize(const Profile& profile, const SearchSpace& space, int devices_max,
                                  double requests_per_s, const OptimizeOptions& options);

// l_sch: the mean wait for a place among D * B, by Allen and Cunneen's formula for service times
// that hardly vary. Infinite when the load is not carried.
double WaitingMs(const Candidate& candidate, double requests_per_s, double arrival_variation);

// The machines that hold `config`, each with `devices_per_instance`.
int Instances(const ParallelConfig& config, int devices_per_instance);

// What to ask of the cloud and what to give back (Algorithm 1, lines 6 to 9): on-demand and spot
// machines are asked for together and what comes first is kept; on-demand machines go first.
struct Fleet {
  int spot = 0;       // alive or being launched, without those under notice
  int on_demand = 0;  //
  int spot_max = 0;   // the most of each that may be had
  int on_demand_max = 0;
  int spares = 2;  // machines kept ready beyond the need
};

struct FleetChange {
  int ask_spot = 0, ask_on_demand = 0;
  int free_spot = 0, free_on_demand = 0;
  friend bool operator==(const FleetChange&, const FleetChange&) = default;
};

FleetChange AdjustFleet(const Fleet& fleet, int instances_needed);

// Every (P, M, B, M1, M2) of the space that fits on `devices`, with its l_exe and D = 1, in the
// released solver's order. For the optimizers and for tests that search by hand.
std::vector<Candidate> Pipelines(const Profile& profile, const SearchSpace& space, int devices);

}  // namespace millrace::plan::spot
