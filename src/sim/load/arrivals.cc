#include "sim/load/arrivals.h"

#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/rng.h"

namespace millrace::sim {
namespace {

double Normal(Rng& rng) {  // Box and Muller; drops the second value of the pair
  const double radius = std::sqrt(-2 * std::log(1 - rng.Uniform()));
  return radius * std::cos(2 * std::numbers::pi * rng.Uniform());
}

// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. Scale 1.
double Gamma(double shape, Rng& rng) {
  if (shape < 1) {  // boosted from shape + 1
    const double u = 1 - rng.Uniform();
    return Gamma(shape + 1, rng) * std::pow(u, 1 / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = Normal(rng);
    const double t = 1 + c * x;
    if (t <= 0) continue;
    const double v = t * t * t;
    const double u = 1 - rng.Uniform();
    if (std::log(u) < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace

double ArrivalGap(double rate, double burstiness, Rng& rng) {
  if (std::isinf(rate)) return 0;
  if (std::isinf(burstiness)) return 1 / rate;
  if (burstiness == 1) return -std::log(1 - rng.Uniform()) / rate;
  return Gamma(burstiness, rng) / (burstiness * rate);
}

std::vector<double> ArrivalTimes(int n, double rate, double burstiness, uint64_t seed) {
  MR_CHECK(rate > 0 && burstiness > 0) << rate << " " << burstiness;
  std::vector<double> times(static_cast<size_t>(n), 0.0);
  Rng rng(seed);
  double now = 0;
  for (double& time : times) time = now += ArrivalGap(rate, burstiness, rng);
  return times;
}

}  // namespace millrace::sim
