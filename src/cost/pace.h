// Pace: how a machine's speed varies. On a shared machine a core loses a third of its speed for
// half a second, or is taken away for ten milliseconds. Such moments make up the tail of latencies,
// and typical step times do not show them. A pace replays a measured recording and starts again
// when it ends. It has two parts. Speed: how long the steps around a moment typically took. Other
// users of the memory bandwidth slow down steps that read weights for a few tokens, but hardly
// those that compute many, so each kind has its own speed. Stalls: the excess of one step over
// those around it. A stall affects whichever step runs, of either kind. Immutable after
// construction; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace millrace::cost {

// A recorded step of `tokens` tokens that typically takes `typical_s` and took `took_s`.
struct PaceStretch {
  int64_t tokens = 0;
  double typical_s = 0, took_s = 0;
};

class Pace {
 public:
  static constexpr size_t kStretchesMax = 100'000;
  static constexpr int64_t kFewTokens = 8;  // steps up to this size are the kind with few tokens
  static constexpr size_t kAround = 15;     // neighbouring steps of a kind that set the speed

  // The stretches are in recorded order. A kind without stretches has the other kind's speed.
  // kInvalidArgument: none, too many, or times that are not above zero and finite.
  static Result<Pace> Create(std::vector<PaceStretch> stretches);

  // How long a step of `tokens`, typically `typical_s`, takes if it begins `at_s` into the
  // recording, which repeats. REQUIRES: none is negative.
  double Seconds(double typical_s, int64_t tokens, double at_s) const;
  double length_s() const { return many_.took.back(); }
  // The time that steps of a kind took over the whole recording, relative to the typical time.
  double slowdown_few() const { return few_.took.back() / few_.typical.back(); }
  double slowdown_many() const { return many_.took.back() / many_.typical.back(); }
  const std::vector<PaceStretch>& stretches() const { return stretches_; }

 private:
  // Work done by one kind of step and the time it took, as sums up to points of the recording.
  struct Curve {
    std::vector<double> typical, took;
    void Go(double typical_s, double took_s);
  };
  explicit Pace(std::vector<PaceStretch> stretches);

  std::vector<PaceStretch> stretches_;
  Curve few_, many_;
};

}  // namespace millrace::cost
