// Arrival times of requests in an open-loop benchmark or a simulation. Pure functions of the seed;
// any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"

namespace millrace::sim {

// Seconds to the next arrival: Gamma distributed with shape `burstiness` (1 / CV^2) and mean 1 /
// rate. 0 for an infinite rate. REQUIRES: rate > 0, burstiness > 0.
double ArrivalGap(double rate, double burstiness, Rng& rng);

// `n` arrival times in seconds from the start. Gaps are Gamma distributed with shape `burstiness`
// and mean 1 / rate: 1 is a Poisson process, below 1 is burstier, infinity gives constant gaps.
// With an infinite rate all are at 0. REQUIRES: rate > 0, burstiness > 0.
// infinite rate: all at 0. REQUIRES: rate > 0, burstiness > 0.
std::vector<double> ArrivalTimes(int n, double rate, double burstiness, uint64_t seed);

}  // namespace millrace::sim
