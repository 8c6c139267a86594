#include "plan/distserve/goodput.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/statistics.h"

namespace millrace::plan {
namespace {

// Factors by which the bracket grows; a bracket around a good guess stays narrow.
constexpr double kFirstGrowth = 1.15;
constexpr double kGrowthPower = 2;
constexpr int kStepsMax = 200;  // of one bisection; far more than a double needs

class Bisection {
 public:
  Bisection(const TrialFn& trial, const GoodputOptions& options, uint64_t seed, Goodput& out)
      : trial_(trial), options_(options), seed_(seed), out_(out) {}

  // The highest rate known to pass; 0 if none does.
  double Run(double guess) {
    double low = std::clamp(guess, options_.rate_min, options_.rate_max), high = low;
    double growth = kFirstGrowth;
    if (Passes(low)) {
      do {
        low = high;
        high = std::min(high * growth, options_.rate_max);
        growth = std::pow(growth, kGrowthPower);
        if (low >= options_.rate_max) return low;
      } while (Passes(high));
    } else {
      do {
        high = low;
        if (low <= options_.rate_min) return 0;
        low = std::max(low / growth, options_.rate_min);
        growth = std::pow(growth, kGrowthPower);
      } while (!Passes(low));
    }
    for (int i = 0; i < kStepsMax && high - low > options_.precision * high; ++i) {
      const double middle = high > 2 * low ? std::sqrt(low * high) : (low + high) / 2;
      (Passes(middle) ? low : high) = middle;
    }
    return low;
  }

 private:
  bool Passes(double rate) {
    ++out_.trials;
    const Attainment attainment = trial_(rate, seed_);
    if (attainment.both >= options_.attainment) return true;
    out_.above = attainment;
    return false;
  }

  const TrialFn& trial_;
  const GoodputOptions& options_;
  const uint64_t seed_;
  Goodput& out_;
};

}  // namespace

Goodput FindGoodput(const TrialFn& trial, const GoodputOptions& options, double guess) {
  MR_CHECK(options.seeds >= 1 && options.precision > 0 && options.rate_min > 0)
      << options.seeds << " seeds, precision " << options.precision;
  Goodput out;
  std::vector<double> rates;
  for (int i = 0; i < options.seeds; ++i) {
    const double rate =
        Bisection(trial, options, options.first_seed + static_cast<uint64_t>(i), out).Run(guess);
    rates.push_back(rate);
    if (rate > 0) guess = rate;
  }
  for (const double rate : rates) out.requests_per_s += rate / options.seeds;
  out.half_width = ConfidenceHalfWidth(rates);
  out.seeds = options.seeds;
  return out;
}

std::string LimitingMetric(const Attainment& attainment) {
  return attainment.ttft < attainment.tpot ? "TTFT" : "TPOT";
}

}  // namespace millrace::plan
