#include "cluster/control/kv_reservation.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::cluster {

KvReservations::KvReservations(std::vector<int64_t> capacity, double high_water)
    : high_water_(high_water),
      capacity_(std::move(capacity)),
      limit_(capacity_.size()),
      used_(capacity_.size(), 0) {
  MR_CHECK(high_water > 0 && high_water <= 1) << high_water;
  for (size_t i = 0; i < capacity_.size(); ++i) SetCapacity(static_cast<int>(i), capacity_[i]);
}

void KvReservations::SetCapacity(int stage, int64_t capacity) {
  capacity_[stage] = capacity;
  limit_[stage] = static_cast<int64_t>(static_cast<double>(capacity) * high_water_);
}

void KvReservations::Charge(const Route& route, int64_t tokens) {
  for (const Hop& hop : route) {
    used_[hop.stage] += tokens * hop.layers.size();
    MR_CHECK(used_[hop.stage] >= 0) << "stage " << hop.stage << " released more than was reserved";
  }
}

bool KvReservations::WithinCapacity(const Route& route) const {
  return std::all_of(route.begin(), route.end(),
                     [this](const Hop& hop) { return used_[hop.stage] <= capacity_[hop.stage]; });
}

}  // namespace millrace::cluster
