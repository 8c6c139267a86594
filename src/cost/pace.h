// Pace: how evenly a machine works. Where others share it, a core loses a third of its speed for
// half a second, or is taken away for ten milliseconds; the tail of latencies is made of such
// moments, and typical step times know nothing of them. A pace is a stretch of a measured past,
// replayed: after it ends it begins anew. Immutable after construction; any thread.
#pragma once

#include <vector>

#include "base/status.h"

namespace millrace::cost {

// A moment of the past: work that typically takes `typical_s` took `took_s`.
struct PaceStretch {
  double typical_s = 0, took_s = 0;
};

class Pace {
 public:
  static constexpr size_t kStretchesMax = 100'000;

  // In the order in which they happened. kInvalidArgument: none, too many, or times that are not
  // above zero and finite.
  static Result<Pace> Create(std::vector<PaceStretch> stretches);

  // How long `typical_s` of work takes when it begins `at_s` into the past, which repeats.
  // REQUIRES: neither is negative.
  double Seconds(double typical_s, double at_s) const;
  double length_s() const { return took_.back(); }
  // Of the time that work took to the typical one, over all.
  double slowdown() const { return took_.back() / typical_.back(); }
  const std::vector<PaceStretch>& stretches() const { return stretches_; }

 private:
  explicit Pace(std::vector<PaceStretch> stretches);

  std::vector<PaceStretch> stretches_;
  std::vector<double> typical_, took_;  // sums up to the end of each
};

}  // namespace millrace::cost
