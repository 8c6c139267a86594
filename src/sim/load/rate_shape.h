// RateShape: a load that varies over time. Equal intervals have given rates and repeat; the arrival
// process stays the same and only runs faster or slower. A value; any thread.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"

namespace millrace::sim {

inline constexpr size_t kRatesMax = 100'000, kRatesBytesMax = size_t{4} << 20;

struct RateShape {
  std::vector<double> shares;  // relative to the mean rate, by interval: mean 1, none negative
  double every_s = 60;         // > 0

  // The end of `gap_s` at the mean rate, starting at `now_s`. Without shares: now_s + gap_s.
  double After(double now_s, double gap_s) const;
};

// `rates` in requests per second; sets `mean` to their mean. kInvalidArgument: none, too many,
// negative or absurd rates, or all 0.
Result<RateShape> ShapeOf(std::vector<double> rates, double every_s, double& mean);
// Numbers separated by commas, spaces and line breaks (SpotServe's arrival-rates.csv). An error
// names the number's position.
Result<std::vector<double>> ParseRates(std::string_view text);

}  // namespace millrace::sim
