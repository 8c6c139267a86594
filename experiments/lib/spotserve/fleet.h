// The machines of the simulated cloud: which are announced, present, under notice or gone, what
// each holds, and what they cost. Driven by the simulator; one thread.
#pragma once

#include <optional>
#include <vector>

#include "experiments/lib/spotserve/mapping.h"
#include "experiments/lib/spotserve/spot_sim.h"

namespace millrace::experiments::spotserve {

struct Node {
  bool announced = false;          // its arrival is known
  double ready_s = 0;              // usable from here on
  std::optional<double> leaves_s;  // under notice
  bool gone = false;
  bool on_demand = false;
  std::vector<std::optional<Holding>> held;  // by device

  bool stays() const { return announced && !gone && !leaves_s.has_value(); }
  bool empty() const;
};

class Fleet {
 public:
  Fleet(const sim::AvailabilityTrace& trace, const SpotCloud& cloud);

  Node& node(int index) { return nodes_[index]; }
  const Node& node(int index) const { return nodes_[index]; }
  // Announced, not gone and not under notice; indices.
  std::vector<int> Staying() const;
  // Announced and not gone.
  std::vector<int> Known() const;

  // Adds machine-seconds by price up to `until_s`, and the cost of only the `needed` machines.
  void Charge(double until_s, int needed);
  double spot_s() const { return spot_s_; }
  double on_demand_s() const { return on_demand_s_; }
  double held_usd() const { return held_usd_; }

 private:
  const SpotCloud& cloud_;
  std::vector<Node> nodes_;
  double charged_to_s_ = 0;
  double spot_s_ = 0, on_demand_s_ = 0, held_usd_ = 0;
};

}  // namespace millrace::experiments::spotserve
