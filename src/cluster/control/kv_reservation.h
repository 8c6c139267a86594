// KvReservations: how much KV is reserved on each stage for the requests routed through it, in
// token layers (one token's keys and values in one layer). The same figure is used to check and to
// charge, so that they cannot diverge. Owned by the router; one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan.h"

namespace millrace::cluster {

class KvReservations {
 public:
  // `capacity`: token layers by stage; `high_water` in (0, 1]: the share that may be reserved.
  KvReservations(std::vector<int64_t> capacity, double high_water);
  // Call when the workers of a stage change. Reservations stay.
  void SetCapacity(int stage, int64_t capacity);

  // Whether `tokens` more tokens of `layers` layers fit below the high-water mark of `stage`.
  bool Fits(int stage, int64_t tokens, int layers) const {
    return used_[stage] + tokens * layers <= limit_[stage];
  }
  // Whether they would fit on an empty stage.
  bool FitsEmpty(int stage, int64_t tokens, int layers) const {
    return tokens * layers <= limit_[stage];
  }
  // Reserves on all hops of a route. A negative `tokens` releases.
  void Charge(const Route& route, int64_t tokens);
  // Whether the reservations of every stage of `route` are within its full capacity.
  bool WithinCapacity(const Route& route) const;

  int64_t used(int stage) const { return used_[stage]; }
  int64_t capacity(int stage) const { return capacity_[stage]; }

 private:
  double high_water_;
  std::vector<int64_t> capacity_, limit_, used_;
};

}  // namespace millrace::cluster
