// What a Fleet sees of its cluster, what it wants done, and what it says of itself.
//
// Values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cluster/fleet/machine_mix.h"

namespace millrace::cluster {

struct FleetMember {
  uint64_t id = 0;  // of this join: another one after the worker has joined again
  std::string worker;
  bool usable = true;
  bool draining = false;
  bool under_notice = false;  // a hard notice: its machine goes away
  std::optional<double> usd_per_h;
};

// The cluster as the caller sees it.
struct FleetView {
  std::vector<FleetMember> members;
  size_t waiting = 0;  // requests
  double unix_s = 0;   // the time of day, for people
};

// A machine as its provider lists it, from the moment that it is asked for.
struct ListedMachine {
  std::string id;
  std::string worker;  // the name under which its worker joins
};

enum class FleetCause : uint8_t {
  kMinimum,        // of a kind
  kLoad,           // more or fewer machines are needed
  kMachinesLost,   // or under notice
  kLate,           // machines did not come in time
  kPriceChanged,   // SpotServe
  kCheaper,        // other machines carry the load for less
  kBudget,         // a price rose, and the budget does not suffice
  kOverDelivered,  // a provider gave more than was asked for
  kProvider        // a provider fails, or answers again
};
std::string_view FleetCauseName(FleetCause cause);  // "minimum", "load", ...

// For people: what the fleet does, and why.
struct FleetEvent {
  double at_unix_s = 0;
  FleetCause cause = FleetCause::kLoad;
  std::string text;
};

struct AcquireMachines {  // answered by AcquireEnded
  uint64_t order = 0;
  size_t kind = 0;
  int count = 0;
};
struct DrainMachine {  // answered by DrainEnded
  std::string worker;
};
struct ReleaseMachine {  // answered by ReleaseEnded
  size_t kind = 0;
  std::string id;
};
// To be logged.
struct FleetLogged {
  FleetEvent event;
};
using FleetAction = std::variant<AcquireMachines, DrainMachine, ReleaseMachine, FleetLogged>;

struct FleetKindStatus {
  std::optional<int> wanted;  // unset: not known yet
  // Machines: whose worker serves; that are on order, of these: that are late; that drain or are
  // released; under notice.
  int serving = 0, on_order = 0, late = 0, draining = 0, leaving = 0;
  std::optional<double> usd_per_h;
  std::string trouble;  // with its provider, now; empty: none
};
struct FleetStatus {
  std::vector<FleetKindStatus> kinds;  // in the order of FleetSpec
  double requests_per_s = 0;           // the load
  double capacity_per_s = 0;           // of the machines that serve
  double capacity_factor = 1;          // what they do of what the file says
  double usd_per_h = 0;
  std::optional<double> usd_per_million_tokens, usd_per_million_tokens_hour;
  double usd_hour = 0;
  MixShortage shortage = MixShortage::kNone;
  std::vector<FleetEvent> events;  // the oldest first
};

}  // namespace millrace::cluster
