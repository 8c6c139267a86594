// Quantiles: the distribution of a stream of times in bounded memory. A value is counted in the
// bucket of its exponent and leading mantissa bits, so a quantile's error is at most
// kRelativeError; mean, minimum and maximum are exact. Two objects can be merged. A value; one
// thread.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::sim {

class Quantiles {
 public:
  static constexpr int kMantissaBits = 9;
  static constexpr double kRelativeError = 1.0 / (1 << (kMantissaBits + 1));
  static constexpr double kLeast = 1e-9;  // smaller values count as this
  static constexpr double kMost = 1e9;    // greater values count as this

  // REQUIRES: value >= 0 and finite.
  void Add(double value);
  void Merge(const Quantiles& other);

  uint64_t count() const { return count_; }
  double sum() const { return sum_; }
  double mean() const { return count_ == 0 ? 0 : sum_ / static_cast<double>(count_); }
  double min() const { return count_ == 0 ? 0 : min_; }
  double max() const { return count_ == 0 ? 0 : max_; }
  // The value below which the share `q` of all values lies; 0 without values. REQUIRES: q in [0,
  // 1].
  double At(double q) const;
  // The share of values up to `limit`, with the precision of the buckets.
  double ShareAtMost(double limit) const;

 private:
  std::vector<uint64_t> buckets_;  // empty until the first value
  uint64_t count_ = 0;
  double sum_ = 0, min_ = 0, max_ = 0;
};

}  // namespace millrace::sim
