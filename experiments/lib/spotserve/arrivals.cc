#include "experiments/lib/spotserve/arrivals.h"

#include <algorithm>

#include "base/check.h"
#include "sim/load/arrivals.h"

namespace millrace::experiments::spotserve {

std::vector<double> ArrivalsByMinute(std::span<const double> requests_per_s, double end_s,
                                     const ArrivalSpec& spec) {
  MR_CHECK(!requests_per_s.empty() && spec.cv > 0);
  Rng rng(spec.seed);
  std::vector<double> times;
  double now = 0;
  for (;;) {
    const size_t minute = std::min(static_cast<size_t>(now / 60), requests_per_s.size() - 1);
    const double rate = requests_per_s[minute];
    const double squared =
        spec.spread == Spread::kAsPublished ? spec.cv * rate / 1000 : spec.cv * spec.cv;
    now += sim::ArrivalGap(rate, 1 / squared, rng);
    if (now >= end_s) return times;
    times.push_back(now);
  }
}

std::vector<double> Arrivals(double requests_per_s, double end_s, const ArrivalSpec& spec) {
  return ArrivalsByMinute(std::span(&requests_per_s, 1), end_s, spec);
}

}  // namespace millrace::experiments::spotserve
