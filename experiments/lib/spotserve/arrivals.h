// Arrival times of SpotServe's experiments, and of the bursty load that they intended. Pure
// functions of the seed; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace millrace::experiments::spotserve {

// The distribution of the gaps around their mean.
enum class Spread : uint8_t {
  // The released generator draws Gamma(shape = 1000 / rate / cv, scale = cv) in milliseconds, whose
  // true coefficient of variation is sqrt(cv * rate / 1000): 0.046 for "CV = 6" at 0.35 req/s.
  kAsPublished,
  kGamma,  // Gamma with the requested coefficient of variation
};

struct ArrivalSpec {
  Spread spread = Spread::kAsPublished;
  double cv = 6;
  uint64_t seed = 1;
};

// Seconds, ascending, in [0, end_s).
std::vector<double> Arrivals(double requests_per_s, double end_s, const ArrivalSpec& spec);

// A rate per minute; the last one continues.
std::vector<double> ArrivalsByMinute(std::span<const double> requests_per_s, double end_s,
                                     const ArrivalSpec& spec);

}  // namespace millrace::experiments::spotserve
