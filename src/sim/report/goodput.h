// Goodput: the highest request rate at which a service meets its limits (DistServe, OSDI'24,
// section 2.2), by bisection on the rate, once per seed. Pure functions of the trial; any thread
// that it permits.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/status.h"
#include "sim/report/report.h"

namespace millrace::sim {

struct GoodputOptions {
  double start_rate = 1;    // first rate of the search
  double tolerance = 0.02;  // relative to the rate
  int seeds = 3;
  uint64_t first_seed = 0;
  double rate_min = 1e-4, rate_max = 1e6;  // the search stays within these
};

// One run: whether the limits were met, and by which share of the requests.
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
  bool unbounded = false;  // met even at rate_max
};

// REQUIRES: valid options: positive rates and tolerance, at least one seed.
Result<Goodput> FindGoodput(const GoodputOptions& options, const TrialRunner& run);

}  // namespace millrace::sim
