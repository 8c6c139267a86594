// FleetClock: the fleet's own time. It follows the caller's clock. A jump of that clock advances it
// by kStepMax at most, so no time limit passes because of a jump.
//
// Owned by Fleet. Pure; one thread at a time.
#pragma once

#include <algorithm>
#include <optional>

#include "base/clock.h"

namespace millrace::cluster {

class FleetClock {
 public:
  static constexpr Duration kStepMax = Duration::Seconds(10);

  // The caller's clock shows this time.
  void Pass(Time callers) {
    now_ = At(callers);
    last_seen_ = callers;
  }
  Time now() const { return now_; }
  // What now() will be if this time is passed next.
  Time At(Time callers) const {
    const Duration step = last_seen_ ? callers - *last_seen_ : Duration{};
    return now_ + std::clamp(step, Duration{}, kStepMax);
  }

 private:
  std::optional<Time> last_seen_;  // by the caller's clock
  Time now_;
};

}  // namespace millrace::cluster
