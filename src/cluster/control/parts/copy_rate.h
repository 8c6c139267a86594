// CopyRate: how many tokens of KV per second reach other workers while copies are in progress, over
// all of them together.
//
// Owned by Transfers. Pure; one thread at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace millrace::cluster {

class CopyRate {
 public:
  // Call it before copies begin and when one has ended, with whether any was in progress until now.
  void Passed(bool busy, Time now) {
    const double seconds = busy ? (now - last_).seconds() : 0;
    last_ = now;
    // What was measured counts half after so many seconds of copying.
    const double kept = std::exp2(-seconds / kHalfLife_s);
    seconds_ = seconds_ * kept + seconds;
    tokens_ *= kept;
  }
  void Arrived(int64_t tokens) { tokens_ += static_cast<double>(tokens); }

  // nullopt: nothing was measured.
  std::optional<double> tokens_per_s() const {
    return seconds_ > 0 && tokens_ > 0 ? std::optional(tokens_ / seconds_) : std::nullopt;
  }

 private:
  static constexpr double kHalfLife_s = 10;

  Time last_;
  double seconds_ = 0, tokens_ = 0;
};

}  // namespace millrace::cluster
