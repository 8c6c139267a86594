#include "sim/load/quantiles.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace millrace::sim {
namespace {

constexpr int kShift = 52 - Quantiles::kMantissaBits;

uint64_t Bits(double value) {
  return std::bit_cast<uint64_t>(std::clamp(value, Quantiles::kLeast, Quantiles::kMost)) >> kShift;
}
const uint64_t kFirst = Bits(Quantiles::kLeast);
const size_t kBuckets = Bits(Quantiles::kMost) - kFirst + 1;

double Middle(size_t bucket) {
  const double low = std::bit_cast<double>((bucket + kFirst) << kShift);
  const double high = std::bit_cast<double>((bucket + kFirst + 1) << kShift);
  return (low + high) / 2;
}

}  // namespace

void Quantiles::Add(double value) {
  MR_CHECK(value >= 0 && std::isfinite(value)) << value;
  if (buckets_.empty()) {
    buckets_.resize(kBuckets);
    min_ = max_ = value;
  }
  ++buckets_[Bits(value) - kFirst];
  ++count_;
  sum_ += value;
  min_ = std::min(min_, value);
  max_ = std::max(max_, value);
}

void Quantiles::Merge(const Quantiles& other) {
  if (other.count_ == 0) return;
  if (count_ == 0) {
    *this = other;
    return;
  }
  for (size_t i = 0; i < kBuckets; ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

double Quantiles::At(double q) const {
  MR_CHECK(q >= 0 && q <= 1) << q;
  if (count_ == 0) return 0;
  const auto rank = static_cast<uint64_t>(q * static_cast<double>(count_ - 1));
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    seen += buckets_[i];
    if (seen > rank) return std::clamp(Middle(i), min_, max_);
  }
  return max_;
}

double Quantiles::ShareAtMost(double limit) const {
  if (count_ == 0) return 0;
  if (limit >= max_) return 1;
  if (limit < min_) return 0;
  uint64_t seen = 0;
  for (size_t i = 0; i <= Bits(limit) - kFirst; ++i) seen += buckets_[i];
  return static_cast<double>(seen) / static_cast<double>(count_);
}

}  // namespace millrace::sim
