// Goodput: the highest rate of requests at which a service still keeps its limits (DistServe,
// OSDI'24, section 2.2), by bisection on the rate, once per seed. Pure functions of the trial.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/status.h"
#include "sim/report.h"

namespace millrace::sim {

struct GoodputOptions {
  double start_rate = 1;    // where the search begins
  double tolerance = 0.02;  // of the rate, relative
  int seeds = 3;
  uint64_t first_seed = 0;
  double rate_min = 1e-4, rate_max = 1e6;  // never looked beyond
};

// One run: whether the limits were kept, and by which share of the requests.
struct GoodputTrial {
  double rate = 0;
  uint64_t seed = 0;
  double attainment = 0;
  bool kept = false;
};
using TrialRunner = std::function<Result<GoodputTrial>(double rate, uint64_t seed)>;

struct Goodput {
  Interval rate;                 // requests per second, over seeds
  std::vector<double> per_seed;  // 0: missed even at rate_min
  std::vector<GoodputTrial> trials;
  bool unbounded = false;  // kept even at rate_max
};

// REQUIRES: options within their sense: positive rates and tolerance, at least one seed.
Result<Goodput> FindGoodput(const GoodputOptions& options, const TrialRunner& run);

}  // namespace millrace::sim
