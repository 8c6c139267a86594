#include "cost/pace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace millrace::cost {
namespace {

// Maps `x` from one axis of a curve through the sums to the other.
double Across(const std::vector<double>& from, const std::vector<double>& to, double x) {
  const auto above = std::upper_bound(from.begin(), from.end() - 1, x);
  const auto i = static_cast<size_t>(above - from.begin());
  const double from_begin = i == 0 ? 0 : from[i - 1], to_begin = i == 0 ? 0 : to[i - 1];
  return to_begin + (x - from_begin) / (from[i] - from_begin) * (to[i] - to_begin);
}

constexpr double kStallWork_s = 1e-6;  // work done in a stall, so that work always grows

// The slowdown of steps of one kind at a moment: the median of the steps around it, so that a stall
// does not affect it.
class Speed {
 public:
  void Note(double middle_s, const PaceStretch& stretch) {
    middles_s_.push_back(middle_s);
    slowness_.push_back(stretch.took_s / stretch.typical_s);
  }
  bool empty() const { return middles_s_.empty(); }
  double SlownessAt(double at_s) const {
    const size_t count = std::min(Pace::kAround, slowness_.size());
    const auto after = std::upper_bound(middles_s_.begin(), middles_s_.end(), at_s);
    const auto place = static_cast<size_t>(after - middles_s_.begin());
    const size_t first = std::min(place - std::min(place, count / 2), slowness_.size() - count);
    std::vector<double> around(slowness_.begin() + static_cast<ptrdiff_t>(first),
                               slowness_.begin() + static_cast<ptrdiff_t>(first + count));
    std::sort(around.begin(), around.end());
    return (around[(count - 1) / 2] + around[count / 2]) / 2;
  }

 private:
  std::vector<double> middles_s_, slowness_;
};

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

void Pace::Curve::Go(double typical_s, double took_s) {
  typical.push_back((typical.empty() ? 0 : typical.back()) + typical_s);
  took.push_back((took.empty() ? 0 : took.back()) + took_s);
}

Pace::Pace(std::vector<PaceStretch> stretches) : stretches_(std::move(stretches)) {
  Speed few, many;
  double at_s = 0;
  for (const PaceStretch& s : stretches_) {
    (s.tokens <= kFewTokens ? few : many).Note(at_s + s.took_s / 2, s);
    at_s += s.took_s;
  }
  at_s = 0;
  for (const PaceStretch& s : stretches_) {
    const double middle_s = at_s + s.took_s / 2;
    at_s += s.took_s;
    const bool is_few = s.tokens <= kFewTokens;
    const double own = (is_few ? few : many).SlownessAt(middle_s);
    const Speed& other = is_few ? many : few;
    const double others = other.empty() ? own : other.SlownessAt(middle_s);
    const double stall_s = std::max(0.0, s.took_s - own * s.typical_s);
    for (const bool to_few : {false, true}) {
      Curve& curve = to_few ? few_ : many_;
      const double done_s = to_few == is_few ? s.typical_s : (s.took_s - stall_s) / others;
      if (stall_s > 0) curve.Go(kStallWork_s, stall_s);
      curve.Go(done_s, s.took_s - stall_s);
    }
  }
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
