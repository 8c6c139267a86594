// The rule of DistServe's artifact for a placement: its simulator (sim/compat), one prefill and one
// decode instance, goodput by P90 of TTFT and P90 of TPOT apart. For comparison with what it found.
#pragma once

#include <vector>

#include "experiments/distserve_model.h"
#include "plan/distserve.h"

namespace millrace::experiments {

struct ArtifactRule {
  const DistserveEngine* engine = nullptr;
  const std::vector<sim::Lengths>* lengths = nullptr;
  double ttft_ms = 0, tpot_ms = 0;
  int requests = 1000;
  uint64_t seed = 0;
  double precision = 0.002;
};

// Requests per second that one pair carries; both P90 below their limits.
plan::Goodput ArtifactGoodput(const ArtifactRule& rule, const plan::DistServeUnit& unit,
                              double guess);

}  // namespace millrace::experiments
