#include "base/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace millrace {
namespace {

// 97.5 % points of Student's t for 1, 2, ... degrees of freedom; beyond them, that of the normal
// distribution.
constexpr double kStudent[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                               2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                               2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                               2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
constexpr double kNormal = 1.96;

}  // namespace

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

double ConfidenceHalfWidth(std::span<const double> sample) {
  if (sample.size() < 2) return 0;
  const size_t freedom = sample.size() - 1;
  const double t = freedom <= std::size(kStudent) ? kStudent[freedom - 1] : kNormal;
  const auto n = static_cast<double>(sample.size());
  const double mean = std::accumulate(sample.begin(), sample.end(), 0.0) / n;
  double squares = 0;
  for (const double x : sample) squares += (x - mean) * (x - mean);
  return t * std::sqrt(squares / (n - 1) / n);
}

}  // namespace millrace
