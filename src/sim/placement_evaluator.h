// Evaluates the candidates of plan/distserve/distserve.h by fast trials (sim/fast/trial.h): the
// Evaluator callbacks of the search, and attainment at a given rate. Lengths come from a sample and
// arrivals are Poisson, both from the trial's seed alone, so that all candidates get the same
// requests. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "plan/distserve/distserve.h"
#include "sim/fast/trial.h"
#include "sim/load/workload.h"

namespace millrace::sim {

// An instance of one parallelism: its cost model and its memory.
struct PlacementKind {
  std::vector<std::shared_ptr<const cost::StepCost>> stages;
  int64_t kv_tokens = 0;  // 0: the model does not fit
};

struct PlacementOptions {
  std::vector<Lengths> lengths;  // not empty
  double ttft_s = 0, tpot_s = 0;
  plan::GoodputOptions goodput;
  // Halves alone only decide what to try, so they may be evaluated more coarsely.
  plan::GoodputOptions screening{.seeds = 1, .precision = 0.05};
  // Simulated duration of a trial, within bounds on its requests.
  double trial_s = 100;
  int requests_min = 500, requests_max = 20'000;
  int chunk_tokens = 512;   // of a chunked-prefill step
  int batch_tokens = 2048;  // of a colocated prefill step; prefill instances take L_m
  int sequences_max = 256;
  double kv_bytes_per_token = 0;
  double kv_bytes_per_s_inside = 0;  // from one device to others of its node; 0: free
  double nic_bytes_per_s = 0;        // out of one node; 0: free
  int devices_per_node = 1;
};

class PlacementEvaluator {
 public:
  using KindOf = std::function<PlacementKind(const plan::Parallel&)>;

  // REQUIRES: options.lengths not empty.
  PlacementEvaluator(PlacementOptions options, KindOf kind_of);

  // Valid during the lifetime of this object.
  plan::DistServeEvaluator Callbacks();
  // Shares of the requests at this rate. `bound` stops a run that certainly misses the target.
  plan::Attainment Attain(const plan::DistServeUnit& unit, int units, double requests_per_s,
                          uint64_t seed, bool bound = false);
  plan::Goodput FindGoodput(const plan::DistServeUnit& unit, int units, double guess);
  // Latencies of single requests that the target share meets.
  plan::UnloadedLatency Unloaded(const plan::DistServeUnit& unit);

  // What a trial runs: the instances of all units, and the requests. A call ends the validity of
  // the requests of the call before.
  TrialDeployment Deploy(const plan::DistServeUnit& unit, int units);
  const std::vector<TrialRequest>& Requests(double requests_per_s, uint64_t seed);

  const PlacementOptions& options() const { return options_; }
  int64_t trials() const { return trials_; }
  int SaturatingTokens(const plan::Parallel& parallel) { return KindFor(parallel).saturating; }

 private:
  struct Known {
    PlacementKind kind;
    TrialInstance instance;
    int saturating = 1;  // L_m
  };
  const Known& KindFor(const plan::Parallel& parallel);

  const PlacementOptions options_;
  const KindOf kind_of_;
  std::map<std::pair<int, int>, Known> kinds_;
  std::vector<TrialRequest> requests_;  // of the current trial
  // Random draws of one seed: lengths and unit gaps, scaled to the rate of each trial.
  struct Draws {
    std::vector<double> arrivals;
    std::vector<Lengths> lengths;
  };
  std::map<uint64_t, Draws> draws_;
  int64_t trials_ = 0;
};

}  // namespace millrace::sim
