// RateShape: a load that is not the same all day. Rates of equal intervals, over and over; arrivals
// keep their process and only follow each other faster or slower. A value; any thread.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::sim {

inline constexpr size_t kRatesMax = 100'000, kRatesBytesMax = size_t{4} << 20;

struct RateShape {
  std::vector<double> shares;  // of the mean rate, by interval: their mean is 1, none is negative
  double every_s = 60;         // > 0

  // When the mean rate's `gap_s` have passed, from `now_s` on. Without shares: now_s + gap_s.
  double After(double now_s, double gap_s) const;
};

// `rates` in requests per second; `mean` is set to theirs. kInvalidArgument: none, too many,
// negative or absurd ones, or all 0.
Result<RateShape> ShapeOf(std::vector<double> rates, double every_s, double& mean);
// Numbers between commas, spaces and lines (SpotServe's arrival-rates.csv). An error names the
// number.
Result<std::vector<double>> ParseRates(std::string_view text);

}  // namespace millrace::sim
