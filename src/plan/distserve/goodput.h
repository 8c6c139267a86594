// Goodput: the highest rate at which a given share of the requests meets both limits, TTFT and TPOT
// (DistServe, section 2). It is found by bisection over simulated trials, one bisection per seed,
// so the answer has a confidence interval. Pure except for the trials; any thread that they permit.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace millrace::plan {

// Shares of the requests of one trial, in [0, 1].
struct Attainment {
  double both = 0;  // TTFT and TPOT of the same request; this one counts
  double ttft = 0, tpot = 0;
};

// One simulated run at `requests_per_s`. A seed draws the same lengths and, except for the scale,
// the same arrivals at every rate and for every candidate.
using TrialFn = std::function<Attainment(double requests_per_s, uint64_t seed)>;

struct GoodputOptions {
  double attainment = 0.9;  // required share of requests
  int seeds = 5;
  uint64_t first_seed = 1;
  double precision = 0.02;  // relative width at which a bisection stops
  double rate_min = 1e-3;   // below it, the goodput is 0
  double rate_max = 1e6;
};

struct Goodput {
  double requests_per_s = 0;  // mean over the seeds; 0: fails even at rate_min
  double half_width = 0;      // of the 95 % confidence interval (Student); 0 for one seed
  int seeds = 0;
  int trials = 0;
  Attainment above;  // just above the goodput: shows what fails first
};

// `guess`: a rate near the answer, to save trials. Any positive number works.
Goodput FindGoodput(const TrialFn& trial, const GoodputOptions& options, double guess = 1);

// "TTFT" or "TPOT", the one that fewer requests meet.
std::string LimitingMetric(const Attainment& attainment);

}  // namespace millrace::plan
