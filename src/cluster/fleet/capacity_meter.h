// CapacityMeter: how many requests per second machines really answer, as a factor on what the
// operator's file says. A file may be wrong by ten times, and so may a profile behind it.
//
//   requests wait all the time, and fewer are answered   the answers are the capacity
//   limits on latency are missed                         a fifth less
//   more answers than the file says, within the limits   they are the capacity
//   nothing of that                                      slowly back to what the file says
//
// Owned by Fleet. Pure: times are arguments. One thread.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace millrace::cluster {

struct CapacityOptions {
  static constexpr double kFactorMin = 0.1, kFactorMax = 10;

  Duration window = Duration::Seconds(30);  // that one judgement is about
  uint64_t answers_min = 10;                // with fewer, nothing is concluded
  double share = 1;                         // of the answers that should keep the limits
};

// What was seen in one window.
struct CapacitySeen {
  double nominal_per_s = 0;   // what the file says of the machines that serve
  double arrivals_per_s = 0;  // requests
  double answers_per_s = 0;
  uint64_t answers = 0;
  double attainment = 1;  // share of the answers within the limits
  bool queued = false;    // requests waited all the time
};

class CapacityMeter {
 public:
  explicit CapacityMeter(const CapacityOptions& options) : options_(options) {}

  // A window begins anew: machines have come or gone.
  void Restart(Time now) { since_ = now; }
  // When the window is over, it is time to Judge what happened since `since()`.
  bool Due(Time now) const { return since_ && now - *since_ >= options_.window; }
  Time since() const { return since_.value_or(Time{}); }
  void Judge(const CapacitySeen& seen, Time now);

  double factor() const { return factor_; }

 private:
  const CapacityOptions options_;
  std::optional<Time> since_;
  double factor_ = 1;
};

}  // namespace millrace::cluster
