// Fleet: decides how many machines of each kind a cluster should have, and acquires and releases
// them through its providers (SpotServe section 3.2, Algorithm 1, lines 6 to 9).
//
//   the load, with headroom, needs more     machines are asked for at once, the cheapest first
//   an order is late, or a provider fails   other kinds take its place; it is asked again later
//   not needed for the cool-down            its worker is drained, then the machine is released
//   a price changes                         the cheaper mix is acquired, then the other released
//
// Machines that have been asked for count, those under notice do not, and neither do those that
// drain; what costs money stays within the budget and the limits. A provider's list of machines is
// the truth: after a restart of the controller the fleet is what the providers list.
//
// Its parts: FleetMachines (what there is, and what providers answer), FleetDecision (what comes
// and goes), meters of load, capacity and cost, FleetClock, FleetOutbox.
//
// Owned by FleetHost. It knows no thread, socket or clock. One thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/autopilot/load_meter.h"
#include "cluster/fleet/capacity_meter.h"
#include "cluster/fleet/cost_meter.h"
#include "cluster/fleet/fleet_clock.h"
#include "cluster/fleet/fleet_decision.h"
#include "cluster/fleet/fleet_machines.h"
#include "cluster/fleet/fleet_outbox.h"
#include "cluster/fleet/fleet_spec.h"
#include "cluster/fleet/fleet_types.h"
#include "core/latency_limits.h"
#include "core/output.h"
#include "plan/spot/rate_meter.h"

namespace millrace::cluster {

class Fleet {
 public:
  // `limits`: what a good answer keeps.
  Fleet(FleetSpec spec, const LatencyLimits& limits);
  Fleet(const Fleet&) = delete;  // its parts refer to each other

  // Requests, as a front end sees them.
  void Arrived(RequestId id, int prompt_tokens, Time now);
  void Heard(const RequestOutput& output, Time now);

  // Call it about every second.
  void Observe(const FleetView& view, Time now);

  // What providers answer. An unknown order, worker or machine is ignored. After an order that was
  // fulfilled, Listed follows with a list that has its machines.
  void AcquireEnded(uint64_t order, const Status& status, Time now) {
    clock_.Pass(now);
    machines_.AcquireEnded(order, status);
  }
  void ReleaseEnded(size_t kind, const std::string& id, const Status& status, Time now) {
    clock_.Pass(now);
    machines_.ReleaseEnded(kind, id, status);
  }
  void Listed(size_t kind, const Result<std::vector<ListedMachine>>& machines, Time now) {
    clock_.Pass(now);
    machines_.Listed(kind, machines);
  }
  // nullopt: the provider knows no price.
  void PriceReported(size_t kind, const Result<std::optional<double>>& usd_per_h, Time now) {
    clock_.Pass(now);
    machines_.PriceReported(kind, usd_per_h);
  }
  // Not ok: the controller refuses, and the worker serves on.
  void DrainEnded(const std::string& worker, const Status& status, Time now) {
    clock_.Pass(now);
    machines_.DrainEnded(worker, status);
  }

  // What is to be done, in order.
  void TakeActions(std::vector<FleetAction>& actions) { outbox_.Take(actions); }
  FleetStatus Describe(Time now) const;
  const FleetSpec& spec() const { return spec_; }

 private:
  void Judge();

  const FleetSpec spec_;
  FleetClock clock_;
  FleetOutbox outbox_;
  FleetMachines machines_;
  FleetDecision decision_;

  LoadMeter meter_;
  plan::spot::RateMeter rate_;
  CapacityMeter capacity_;
  CostMeter cost_;
  double load_per_s_ = 0;
  bool queued_ = true;                 // requests have waited since capacity_.since()
  std::vector<uint64_t> serving_ids_;  // of the members that the capacity is measured of
};

}  // namespace millrace::cluster
