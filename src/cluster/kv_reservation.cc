#include "cluster/kv_reservation.h"

#include <algorithm>

#include "base/check.h"

namespace millrace::cluster {

KvReservations::KvReservations(std::vector<int64_t> capacity, double high_water)
    : capacity_(std::move(capacity)), used_(capacity_.size(), 0) {
  MR_CHECK(high_water > 0 && high_water <= 1) << high_water;
  for (int64_t c : capacity_) {
    limit_.push_back(static_cast<int64_t>(static_cast<double>(c) * high_water));
  }
}

void KvReservations::Charge(const Route& route, int64_t tokens) {
  for (const Hop& hop : route) {
    used_[hop.stage] += tokens * hop.layers.size();
    MR_CHECK(used_[hop.stage] >= 0) << "stage " << hop.stage << " gave back more than it promised";
  }
}

bool KvReservations::WithinCapacity(const Route& route) const {
  return std::all_of(route.begin(), route.end(),
                     [this](const Hop& hop) { return used_[hop.stage] <= capacity_[hop.stage]; });
}

}  // namespace millrace::cluster
