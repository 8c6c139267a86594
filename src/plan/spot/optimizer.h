// The parallel configuration for a number of devices and a load: SpotServe's adaptive optimizer
// (Algorithm 1). Two rules over one search space:
//
//   OptimizeAsPublished  the released solver's: the smallest l_exe of those that carry the load,
//                        or the greatest throughput if none does; all devices spread over D.
//   Optimize             the same with the paper's "similar latency, fewer instances" made exact
//                        (a tie band), no more pipelines than needed, and a limit of instances
//                        that may exceed the available ones.
//
// Pure functions of their arguments; any thread.
#pragma once

#include <optional>
#include <vector>

#include "plan/spot/profile.h"

namespace millrace::plan::spot {

// How an engine processes a batch.
enum class BatchRule : uint8_t {
  kToCompletion,  // SpotServe's: B requests together until the last token
  // Iterations of B requests, spread over as many lanes as there are stages. Requests come and go
  // one by one. Micro-batches are not used.
  kContinuous,
};

struct SearchSpace {
  int devices_min = 1;           // of one pipeline: the model does not fit on fewer
  int batch_max = 4;             // a power of two
  int output_tokens = 128;       // S_out
  int devices_per_instance = 1;  // machines are added and removed whole
  BatchRule batching = BatchRule::kToCompletion;
};

struct Candidate {
  ParallelConfig config;
  double execution_ms = 0;
  double throughput_per_s = 0;
  bool carries_load = false;  // false: the fallback
  double waiting_ms = 0;      // l_sch, if requested
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// None if not even one pipeline fits on `devices`.
std::optional<Candidate> OptimizeAsPublished(const Profile& profile, const SearchSpace& space,
                                             int devices, double requests_per_s);

struct OptimizeOptions {
  double tie_band = 0.05;  // latencies within this share of the best count as equal
  double headroom = 1;     // multiple of the load to carry
  // The squared coefficient of variation of the gaps between arrivals. If set, the optimizer
  // minimises l_exe + l_sch, as in the paper; otherwise l_exe alone, as in its code.
  std::optional<double> arrival_variation;
  // Machines kept ready beyond the need. Pipelines are added while they fit on them.
  int serving_spares = 0;
};

// None if not even one pipeline fits on `devices_max`, the most that could be obtained.
std::optional<Candidate> Optimize(const Profile& profile, const SearchSpace& space, int devices_max,
                                  double requests_per_s, const OptimizeOptions& options);

// l_sch: the mean wait for one of D * B places, by Allen and Cunneen's formula for nearly constant
// service times. Infinite if the load is not carried.
double WaitingMs(const Candidate& candidate, double requests_per_s, double arrival_variation);

// The number of machines with `devices_per_instance` devices that hold `config`.
int Instances(const ParallelConfig& config, int devices_per_instance);

// Every (P, M, B, M1, M2) of the space that fits on `devices`, with its l_exe and D = 1, in the
// released solver's order. For the optimizers and for tests that search by hand.
std::vector<Candidate> Pipelines(const Profile& profile, const SearchSpace& space, int devices);

}  // namespace millrace::plan::spot
