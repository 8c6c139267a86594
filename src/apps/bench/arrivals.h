// When requests arrive in an open-loop benchmark. Pure functions of the seed.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::apps {

// `n` arrival times in seconds from the start. Gaps are Gamma distributed with shape `burstiness`
// and mean 1 / rate: 1 is a Poisson process, below 1 is burstier, infinity is a steady beat. An
// infinite rate: all at 0. REQUIRES: rate > 0, burstiness > 0.
std::vector<double> ArrivalTimes(int n, double rate, double burstiness, uint64_t seed);

}  // namespace millrace::apps
