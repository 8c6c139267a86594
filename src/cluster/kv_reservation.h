// KvReservations: how much KV each stage has promised to the requests on their way through it, in
// token layers (one token's keys and values of one layer). One figure serves both to check and to
// charge, so neither can run ahead of the other. Owned by the router; one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan.h"

namespace millrace::cluster {

class KvReservations {
 public:
  // `capacity`: token layers by stage; `high_water` in (0, 1]: the share that may be promised.
  KvReservations(std::vector<int64_t> capacity, double high_water);
  // Of a stage that has other workers now; what is promised stays promised.
  void SetCapacity(int stage, int64_t capacity);

  // Whether `tokens` more of `layers` layers fit below the high water of `stage`.
  bool Fits(int stage, int64_t tokens, int layers) const {
    return used_[stage] + tokens * layers <= limit_[stage];
  }
  // Whether they would on an empty stage.
  bool FitsEmpty(int stage, int64_t tokens, int layers) const {
    return tokens * layers <= limit_[stage];
  }
  // All hops of a route at once. `tokens` may be negative: given back.
  void Charge(const Route& route, int64_t tokens);
  // Whether every stage of `route` is within its whole capacity.
  bool WithinCapacity(const Route& route) const;

  int64_t used(int stage) const { return used_[stage]; }
  int64_t capacity(int stage) const { return capacity_[stage]; }

 private:
  double high_water_;
  std::vector<int64_t> capacity_, limit_, used_;
};

}  // namespace millrace::cluster
