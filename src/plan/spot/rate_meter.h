// RateMeter: the arrival rate that capacity is planned for (alpha_t of SpotServe, section 3.2,
// whose released code reads it from a flag instead of measuring it).
//
// Pure: times are arguments and must not go back. One thread.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "base/clock.h"

namespace millrace::plan::spot {

// Requests per second: the greater mean of a short and a long window, plus the rate that empties
// the queue within `drain`.
class RateMeter {
 public:
  struct Options {
    Duration short_window = Duration::Seconds(30);
    Duration long_window = Duration::Seconds(300);
    Duration drain = Duration::Seconds(120);  // time in which the queue should empty
    size_t arrivals_max = 100'000;            // older ones are forgotten
  };

  RateMeter() = default;
  explicit RateMeter(const Options& options) : options_(options) {}

  void Arrive(Time now);
  // Zero before the first arrival. Windows end at the first arrival.
  double RequestsPerSecond(Time now, size_t queue_length);
  // The squared coefficient of variation of the gaps in the long window. With too few gaps it is 1,
  // as for a Poisson stream.
  double Variation() const;

 private:
  Options options_;
  std::deque<Time> arrivals_;
  std::optional<Time> first_;
};

}  // namespace millrace::plan::spot
