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
  double typical = 0, took = 0;
  for (const PaceStretch& s : stretches_) {
    typical_.push_back(typical += s.typical_s);
    took_.push_back(took += s.took_s);
  }
}

double Pace::Seconds(double typical_s, double at_s) const {
  const double begin = std::fmod(at_s, length_s());
  const double work = Across(took_, typical_, begin) + typical_s;
  const double rounds = std::floor(work / typical_.back());
  const double end = rounds * length_s() + Across(typical_, took_, work - rounds * typical_.back());
  return std::max(0.0, end - begin);
}

}  // namespace millrace::cost
