#include "base/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace millrace {

double Mean(const std::vector<double>& sample) {
  if (sample.empty()) return 0;
  return std::accumulate(sample.begin(), sample.end(), 0.0) / static_cast<double>(sample.size());
}

double StdDev(const std::vector<double>& sample) {
  if (sample.empty()) return 0;
  const double mean = Mean(sample);
  double sum = 0;
  for (double x : sample) sum += (x - mean) * (x - mean);
  return std::sqrt(sum / static_cast<double>(sample.size()));
}

double Percentile(std::vector<double> sample, double percent) {
  MR_CHECK(percent >= 0 && percent <= 100) << percent;
  if (sample.empty()) return 0;
  const double rank = percent / 100 * static_cast<double>(sample.size() - 1);
  const auto low = static_cast<size_t>(rank);
  const auto low_at = sample.begin() + static_cast<ptrdiff_t>(low);
  std::nth_element(sample.begin(), low_at, sample.end());
  if (low + 1 == sample.size()) return *low_at;
  const double high = *std::min_element(low_at + 1, sample.end());
  return *low_at + (high - *low_at) * (rank - static_cast<double>(low));
}

double Median(std::vector<double> sample) { return Percentile(std::move(sample), 50); }

}  // namespace millrace
