// RenewalTimer: when a lease on KV is renewed, which is after a quarter of its duration. A value.
#pragma once

#include <optional>

#include "base/clock.h"

namespace millrace::cluster {

class RenewalTimer {
 public:
  // Whether the lease, which has begun since the last call at the latest, is to be renewed.
  bool Due(Time now, Duration lease) {
    if (!at_) Restart(now, lease);
    return now >= *at_;
  }
  void Restart(Time now, Duration lease) { at_ = now + Duration{lease.ns / 4}; }

 private:
  std::optional<Time> at_;
};

}  // namespace millrace::cluster
