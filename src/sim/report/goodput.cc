#include "sim/report/goodput.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace millrace::sim {
namespace {

constexpr double kFirstFactor = 2, kNextFactor = 1.06, kFactorMax = 4;

class Search {
 public:
  Search(const GoodputOptions& options, const TrialRunner& run, Goodput& out)
      : options_(options), run_(run), out_(out) {}

  // Multiplies or divides `start` by `factor` and its powers until a kept and a missed limit
  // bracket the answer; then bisects on a logarithmic scale.
  Result<double> For(uint64_t seed, double start, double factor) {
    double rate = std::clamp(start, options_.rate_min, options_.rate_max);
    MR_ASSIGN_OR_RETURN(bool kept, Kept(rate, seed));
    double low = kept ? rate : 0, high = kept ? 0 : rate;
    while (low == 0 || high == 0) {
      if (high == 0 && low >= options_.rate_max) {
        out_.unbounded = true;
        return low;
      }
      if (low == 0 && high <= options_.rate_min) return 0.0;
      rate = low == 0 ? std::max(high / factor, options_.rate_min)
                      : std::min(low * factor, options_.rate_max);
      factor = std::min(factor * factor, kFactorMax);
      MR_ASSIGN_OR_RETURN(kept, Kept(rate, seed));
      (kept ? low : high) = rate;
    }
    while (high / low > 1 + options_.tolerance) {
      rate = std::sqrt(low * high);
      MR_ASSIGN_OR_RETURN(kept, Kept(rate, seed));
      (kept ? low : high) = rate;
    }
    return low;
  }

 private:
  Result<bool> Kept(double rate, uint64_t seed) {
    MR_ASSIGN_OR_RETURN(const GoodputTrial trial, run_(rate, seed));
    out_.trials.push_back(trial);
    return trial.kept;
  }

  const GoodputOptions& options_;
  const TrialRunner& run_;
  Goodput& out_;
};

}  // namespace

Result<Goodput> FindGoodput(const GoodputOptions& options, const TrialRunner& run) {
  MR_CHECK(options.seeds > 0 && options.tolerance > 0 && options.rate_min > 0 &&
           options.rate_max >= options.rate_min);
  Goodput goodput;
  Search search(options, run, goodput);
  double start = options.start_rate, factor = kFirstFactor;
  for (int i = 0; i < options.seeds; ++i) {
    const uint64_t seed = options.first_seed + static_cast<uint64_t>(i);
    MR_ASSIGN_OR_RETURN(const double rate, search.For(seed, start, factor));
    goodput.per_seed.push_back(rate);
    if (rate == 0) continue;
    start = rate;  // the next seed's answer is close
    factor = kNextFactor;
  }
  goodput.rate = MeanInterval(goodput.per_seed);
  return goodput;
}

}  // namespace millrace::sim
