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
// A clock jump advances time by kStepMax at most, so no time limit passes because of it.
//
// Files: fleet.cc (what happens; the status), fleet_machines.cc (machines and what providers
// answer), fleet_decide.cc (which machines are acquired and released).
//
// Owned by FleetHost. It knows no thread, socket or clock. One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/autopilot/load_meter.h"
#include "cluster/fleet/capacity_meter.h"
#include "cluster/fleet/cost_meter.h"
#include "cluster/fleet/fleet_spec.h"
#include "cluster/fleet/machine_mix.h"
#include "core/latency_limits.h"
#include "core/output.h"
#include "plan/spot/rate_meter.h"

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

class Fleet {
 public:
  static constexpr Duration kStepMax = Duration::Seconds(10);
  static constexpr size_t kEventsMax = 100;  // kept; older ones are forgotten

  // `limits`: what a good answer keeps.
  Fleet(FleetSpec spec, const LatencyLimits& limits);

  // Requests, as a front end sees them.
  void Arrived(RequestId id, int prompt_tokens, Time now);
  void Heard(const RequestOutput& output, Time now);

  // Call it about every second.
  void Observe(const FleetView& view, Time now);

  // What providers answer. An unknown order, worker or machine is ignored. After an order that was
  // fulfilled, Listed follows with a list that has its machines.
  void AcquireEnded(uint64_t order, const Status& status, Time now);
  void ReleaseEnded(size_t kind, const std::string& id, const Status& status, Time now);
  void Listed(size_t kind, const Result<std::vector<ListedMachine>>& machines, Time now);
  // nullopt: the provider knows no price.
  void PriceReported(size_t kind, const Result<std::optional<double>>& usd_per_h, Time now);
  // Not ok: the controller refuses, and the worker serves on.
  void DrainEnded(const std::string& worker, const Status& status, Time now);

  // What is to be done, in order.
  void TakeActions(std::vector<FleetAction>& actions);
  FleetStatus Describe(Time now) const;
  const FleetSpec& spec() const { return spec_; }

 private:
  enum class Held : uint8_t {
    kInUse,     // its worker serves, or is expected
    kDraining,  // the controller has been asked to drain its worker
    kReleasing  // nothing runs there: it is given back
  };
  struct Machine {
    std::string id, worker;
    Held held = Held::kInUse;
    Time absent_since;        // it has no usable worker since then
    bool joined = false;      // its worker has joined at least once
    bool present = false;     // it was there when the fleet looked last
    bool listed = true;       // by its provider
    Time keep_until;          // the controller has refused to drain it
    uint64_t drained_id = 0;  // FleetMember::id of the drained worker
    bool drain_seen = false;
    FleetCause why_drained = FleetCause::kLoad;
    std::string drain_text;  // said once the drain has begun; empty: it was said
    std::string refused;     // why the controller has refused last, which was said
    bool release_sent = false;
    Time release_at;  // not before
  };
  struct Order {
    uint64_t id = 0;
    size_t kind = 0;
    int count = 0;
    Time since;
  };
  // Something of a provider that fails. It is said once, and tried again after a back-off.
  struct Trouble {
    std::string text;  // empty: none
    int failures = 0;  // in a row
    Time until;        // not before
  };
  struct Kind {
    std::vector<Machine> machines;   // in the provider's order
    bool listed = false;             // its provider has answered once
    std::optional<size_t> expected;  // so many machines should be listed next
    std::optional<double> said_usd_per_h;
    int desired = 0;  // of a kind without a provider: what the metric says
    Time desired_since;
    std::optional<Time> asked;  // for machines, last
    Trouble acquire, release, list, price;
  };

  static constexpr size_t kNameBytes = 64;  // of a machine or worker, as it is shown

  // fleet.cc
  Time Pass(Time now);
  const FleetMember* FindMember(const std::string& worker) const;
  // Which kinds the members are of: by the machine, or by the beginning of the name.
  void MapWorkers();
  std::optional<size_t> KindOf(const FleetMember& member) const;
  std::optional<double> PriceOf(size_t kind) const;
  FleetKindStatus CountKind(size_t kind) const;
  std::vector<KindStanding> Standings() const;
  double NominalRate() const;
  void Judge();
  void Charge();
  void Log(FleetCause cause, std::string text);

  // fleet_machines.cc
  void Follow(size_t kind);
  void FollowDrain(Machine& machine, const FleetMember* member);
  void GiveUpAbsent(size_t kind);
  void SendReleases(size_t kind);
  Machine* FindMachine(size_t kind, const std::string& id);
  bool OthersHave(size_t kind, const ListedMachine& machine) const;
  void Drain(Machine& machine, const FleetMember& member);
  void Fail(size_t kind, Trouble& trouble, const std::string& text);
  void Recover(size_t kind, Trouble& trouble);

  // fleet_decide.cc
  void Decide();
  void FollowDesired();
  void Add(const MixNeed& need);
  void Ask(size_t kind, int count, FleetCause cause, const std::string& why);
  std::vector<int> Replacement(const MixNeed& left) const;
  void Swap(const MixNeed& left);
  void Shrink(const MixNeed& left);
  void KeepBudget();
  void ReturnSurplus(size_t kind);
  bool ReleaseOne(size_t kind, FleetCause cause, const std::string& why);
  Machine* MachineToRelease(size_t kind);
  bool MayDrain() const;
  bool Settling(size_t kind) const;
  bool HasOrder(size_t kind) const;
  MixAnswer WhatToAdd(const MixNeed& need) const;
  bool CancelOrder(const MixNeed& left);

  const FleetSpec spec_;
  std::vector<Kind> kinds_;
  std::vector<Order> orders_;
  uint64_t last_order_ = 0;
  FleetView view_;
  std::map<std::string, size_t> member_at_;     // in view_, by worker
  std::map<std::string, size_t> machine_kind_;  // of every machine, by worker
  std::map<std::string, size_t> member_kind_;   // of the members that are of a kind, by worker

  std::optional<Time> last_seen_;  // by the caller's clock
  Time now_;                       // without jumps
  Time started_;
  bool observed_ = false;
  Time last_change_;               // machines were asked for, or released
  std::optional<Time> last_lost_;  // a machine was lost, or got notice
  std::optional<Time> swap_since_, price_changed_;
  bool queued_ = true;                 // requests have waited since capacity_.since()
  std::vector<uint64_t> serving_ids_;  // of the members that the capacity is measured of

  LoadMeter meter_;
  plan::spot::RateMeter rate_;
  CapacityMeter capacity_;
  CostMeter cost_;
  double load_per_s_ = 0;
  MixShortage shortage_ = MixShortage::kNone;
  std::vector<int> missing_;  // by kind: wanted beside those that are there or asked for
  bool over_budget_said_ = false;
  std::deque<FleetEvent> events_;
  std::vector<FleetAction> actions_;
};

}  // namespace millrace::cluster
