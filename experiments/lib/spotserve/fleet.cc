#include "experiments/lib/spotserve/fleet.h"

#include <algorithm>
#include <cmath>

namespace millrace::experiments::spotserve {
namespace {

constexpr int kSpares = 2;  // machines kept beyond the need, as SpotServe does

}  // namespace

bool Node::empty() const {
  return std::none_of(held.begin(), held.end(), [](const auto& h) { return h.has_value(); });
}

Fleet::Fleet(const sim::AvailabilityTrace& trace, const SpotCloud& cloud)
    : cloud_(cloud), nodes_(trace.node_count) {
  for (Node& node : nodes_) {
    node.held.resize(cloud.devices_per_instance);
    node.on_demand = cloud.all_on_demand;
  }
  if (!cloud.on_demand_after_loss_s.has_value()) return;
  for (const sim::AvailabilityEvent& loss : trace.events) {
    if (loss.kind != sim::AvailabilityKind::kRemove) continue;
    for (const sim::AvailabilityEvent& add : trace.events) {
      if (add.kind != sim::AvailabilityKind::kAdd) continue;
      if (std::abs(add.at_s - loss.at_s - *cloud.on_demand_after_loss_s) > 1e-6) continue;
      for (const int node : add.nodes) nodes_[node].on_demand = true;
    }
  }
}

std::vector<int> Fleet::Staying() const {
  std::vector<int> staying;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].stays()) staying.push_back(static_cast<int>(i));
  }
  return staying;
}

std::vector<int> Fleet::Known() const {
  std::vector<int> known;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].announced && !nodes_[i].gone) known.push_back(static_cast<int>(i));
  }
  return known;
}

void Fleet::Charge(double until_s, int needed) {
  const double span_s = std::max(0.0, until_s - charged_to_s_);
  if (span_s <= 0) return;
  int spot = 0, on_demand = 0;
  for (const Node& node : nodes_) {
    if (!node.announced || node.gone || node.ready_s > charged_to_s_ + 1e-9) continue;
    (node.on_demand ? on_demand : spot) += 1;
  }
  charged_to_s_ = until_s;
  spot_s_ += spot * span_s;
  on_demand_s_ += on_demand * span_s;
  // Releases on-demand machines first, then spot machines beyond the spares.
  const int held_spot = std::min(spot, needed + kSpares);
  const int held_on_demand = std::clamp(needed - held_spot, 0, on_demand);
  held_usd_ +=
      span_s / 3600 *
      (held_spot * cloud_.spot_usd_per_hour + held_on_demand * cloud_.on_demand_usd_per_hour);
}

}  // namespace millrace::experiments::spotserve
