#include "cost/pace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace millrace::cost {
namespace {

// Where `x` lies on one axis of a curve through the sums, on the other.
double Across(const std::vector<double>& from, const std::vector<double>& to, double x) {
  const auto above = std::upper_bound(from.begin(), from.end() - 1, x);
  const auto i = static_cast<size_t>(above - from.begin());
  const double from_begin = i == 0 ? 0 : from[i - 1], to_begin = i == 0 ? 0 : to[i - 1];
  return to_begin + (x - from_begin) / (from[i] - from_begin) * (to[i] - to_begin);
}

}  // namespace

Result<Pace> Pace::Create(std::vector<PaceStretch> stretches) {
  if (stretches.empty() || stretches.size() > kStretchesMax) {
    return InvalidArgument(
        fmt::format("a pace has 1 to {} stretches, got {}", kStretchesMax, stretches.size()));
  }
  constexpr double kLeastS = 1e-9, kMostS = 1e6;
  for (const PaceStretch& s : stretches) {
    if (s.typical_s >= kLeastS && s.took_s >= kLeastS && s.typical_s <= kMostS &&
        s.took_s <= kMostS) {
      continue;
    }
    return InvalidArgument(fmt::format("a stretch of {} s that took {} s: both must be in [{}, {}]",
                                       s.typical_s, s.took_s, kLeastS, kMostS));
  }
  return Pace(std::move(stretches));
}

Pace::Pace(std::vector<PaceStretch> stretches) : stretches_(std::move(stretches)) {
  std::vector<PaceStretch> few, many;
  double length_s = 0;
  for (const PaceStretch& s : stretches_) {
    (s.tokens <= kFewTokens ? few : many).push_back(s);
    length_s += s.took_s;
  }
  few_ = CurveOf(few.empty() ? many : few, length_s);
  many_ = CurveOf(many.empty() ? few : many, length_s);
}

// Slow moments last seconds and each kind saw a part of them, so each is stretched over the whole.
Pace::Curve Pace::CurveOf(std::span<const PaceStretch> stretches, double length_s) {
  double all_s = 0;
  for (const PaceStretch& s : stretches) all_s += s.took_s;
  const double scale = length_s / all_s;
  Curve curve;
  double typical = 0, took = 0;
  for (const PaceStretch& s : stretches) {
    curve.typical.push_back(typical += scale * s.typical_s);
    curve.took.push_back(took += scale * s.took_s);
  }
  return curve;
}

double Pace::Seconds(double typical_s, int64_t tokens, double at_s) const {
  const auto& [typical, took] = tokens <= kFewTokens ? few_ : many_;
  const double length_s = took.back();
  const double begin = std::fmod(at_s, length_s);
  const double work = Across(took, typical, begin) + typical_s;
  const double rounds = std::floor(work / typical.back());
  const double end = rounds * length_s + Across(typical, took, work - rounds * typical.back());
  return std::max(0.0, end - begin);
}

}  // namespace millrace::cost
