// FleetDecision: which machines are acquired and released, so that the ones that count carry the
// load with headroom for the fewest USD, within the limits and the budget (machine_mix.h). Machines
// are asked for at once, and released after the cool-down.
//
// Owned by Fleet. Pure; one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/fleet/fleet_clock.h"
#include "cluster/fleet/fleet_machines.h"
#include "cluster/fleet/fleet_outbox.h"
#include "cluster/fleet/fleet_spec.h"
#include "cluster/fleet/fleet_types.h"
#include "cluster/fleet/machine_mix.h"

namespace millrace::cluster {

class FleetDecision {
 public:
  // The references outlive this object.
  FleetDecision(const FleetSpec& spec, const FleetClock& clock, FleetMachines& machines,
                FleetOutbox& outbox);

  // Acts on the machines as they are now. `capacity_factor`: what they do of what the file says.
  void Decide(double load_per_s, double capacity_factor);

  MixShortage shortage() const { return shortage_; }
  // Machines of the kind that are wanted beside those that are there or asked for.
  int missing(size_t kind) const { return missing_[kind]; }

 private:
  // Machines were asked for, or released.
  Time LastChange() const { return last_change_.value_or(machines_.started()); }
  void Add(const MixNeed& need);
  MixAnswer WhatToAdd(const MixNeed& need) const;
  void Ask(size_t kind, int count, FleetCause cause, const std::string& why);
  std::vector<int> Replacement(const MixNeed& left) const;
  void Swap(const MixNeed& left);
  void Shrink(const MixNeed& left);
  bool CancelOrder(const MixNeed& left);
  void KeepBudget();
  void ReturnSurplus(size_t kind);
  bool MayDrain() const;

  const FleetSpec& spec_;
  const FleetClock& clock_;
  FleetMachines& machines_;
  FleetOutbox& outbox_;
  double load_per_s_ = 0;
  double factor_ = 1;
  std::optional<Time> last_change_, swap_since_;
  MixShortage shortage_ = MixShortage::kNone;
  std::vector<int> missing_;  // by kind
  bool over_budget_logged_ = false;
};

}  // namespace millrace::cluster
