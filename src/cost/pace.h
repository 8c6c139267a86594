// Pace: how evenly a machine works. Where others share it, a core loses a third of its speed for
// half a second, or is taken away for ten milliseconds; the tail of latencies is made of such
// moments, and typical step times know nothing of them. A pace is a stretch of a measured past,
// replayed: after it ends it begins anew. It has two parts. Speed: what the steps around a moment
// typically took. Who shares the memory's bandwidth slows the steps that read weights for a few
// tokens, hardly those that compute many, so each kind has a speed of its own. Stalls: what one
// step took longer than those around it. They hit whichever step runs, of either kind. Immutable
// after construction; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace millrace::cost {

// A moment of the past: a step of so many tokens, which typically takes `typical_s`, took `took_s`.
struct PaceStretch {
  int64_t tokens = 0;
  double typical_s = 0, took_s = 0;
};

class Pace {
 public:
  static constexpr size_t kStretchesMax = 100'000;
  static constexpr int64_t kFewTokens = 8;  // up to these the weights are read for few
  static constexpr size_t kAround = 15;     // steps of its kind tell the speed at a moment

  // In the order in which they happened; without any of a kind, the other's speed is its speed.
  // kInvalidArgument: none, too many, or times that are not above zero and finite.
  static Result<Pace> Create(std::vector<PaceStretch> stretches);

  // How long a step of `tokens`, typically `typical_s`, takes when it begins `at_s` into the past,
  // which repeats. REQUIRES: none is negative.
  double Seconds(double typical_s, int64_t tokens, double at_s) const;
  double length_s() const { return many_.took.back(); }
  // Of the time that steps of a kind take, over the whole past, to the typical one.
  double slowdown_few() const { return few_.took.back() / few_.typical.back(); }
  double slowdown_many() const { return many_.took.back() / many_.typical.back(); }
  const std::vector<PaceStretch>& stretches() const { return stretches_; }

 private:
  // What a kind of step gets done, and the time it takes: sums up to points of the past.
  struct Curve {
    std::vector<double> typical, took;
    void Go(double typical_s, double took_s);
  };
  explicit Pace(std::vector<PaceStretch> stretches);

  std::vector<PaceStretch> stretches_;
  Curve few_, many_;
};

}  // namespace millrace::cost
