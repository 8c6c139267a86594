// The placement rule of DistServe's artifact: its simulator (lib/distserve), one prefill and one
// decode instance, goodput by P90 of TTFT and P90 of TPOT separately. For comparison with its
// results. Pure; any thread.
#pragma once

#include <vector>

#include "experiments/distserve_model.h"
#include "plan/distserve/distserve.h"

namespace millrace::experiments {

struct ArtifactRule {
  const DistserveEngine* engine = nullptr;
  const std::vector<sim::Lengths>* lengths = nullptr;
  double ttft_ms = 0, tpot_ms = 0;
  int requests = 1000;
  uint64_t seed = 0;
  double precision = 0.002;
};

// Requests per second of one pair with both P90 below their limits.
plan::Goodput ArtifactGoodput(const ArtifactRule& rule, const plan::DistServeUnit& unit,
                              double guess);

}  // namespace millrace::experiments
