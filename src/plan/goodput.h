// Goodput: the highest rate at which a share of the requests meets both limits, TTFT and TPOT
// (DistServe, section 2). Found by bisection over simulated trials, one bisection per seed, so that
// the answer comes with an interval instead of the noise of one trace. Pure but for the trials.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace millrace::plan {

// Shares of the requests of one trial, in [0, 1].
struct Attainment {
  double both = 0;  // the one that counts: TTFT and TPOT of the same request
  double ttft = 0, tpot = 0;
};

// One simulated run at `requests_per_s`. The same seed draws the same lengths and, but for the
// scale, the same arrivals at every rate and for every candidate.
using TrialFn = std::function<Attainment(double requests_per_s, uint64_t seed)>;

struct GoodputOptions {
  double attainment = 0.9;  // share of requests
  int seeds = 5;
  uint64_t first_seed = 1;
  double precision = 0.02;  // relative width at which a bisection stops
  double rate_min = 1e-3;   // below: none
  double rate_max = 1e6;
};

struct Goodput {
  double requests_per_s = 0;  // mean over the seeds; 0: not even at rate_min
  double half_width = 0;      // of the 95 % confidence interval (Student); 0 for one seed
  int seeds = 0;
  int trials = 0;
  Attainment above;  // just beyond the goodput: what fails first
};

// `guess`: a rate near the answer, to save trials; any positive number is right.
Goodput FindGoodput(const TrialFn& trial, const GoodputOptions& options, double guess = 1);

// "TTFT" or "TPOT": whichever fewer requests meet.
std::string LimitingMetric(const Attainment& attainment);

// Half the width of the 95 % confidence interval of the mean. 0 for fewer than two values.
double ConfidenceHalfWidth(const double* values, int count);

}  // namespace millrace::plan
