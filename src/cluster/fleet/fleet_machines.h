// FleetMachines: the machines of each kind and the orders for more, as the providers list them and
// as the cluster's workers show. What a provider lists is the truth. A machine whose worker does
// not come is given back; one is only released when its worker has left. Every failure of a
// provider is logged once and tried again after a back-off.
//
// It acquires and releases what FleetDecision says, and decides nothing about how many are needed.
//
// Owned by Fleet. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/fleet/fleet_clock.h"
#include "cluster/fleet/fleet_outbox.h"
#include "cluster/fleet/fleet_spec.h"
#include "cluster/fleet/fleet_types.h"
#include "cluster/fleet/machine_mix.h"
#include "cluster/fleet/provider_troubles.h"

namespace millrace::cluster {

class FleetMachines {
 public:
  // The references outlive this object.
  FleetMachines(const FleetSpec& spec, const FleetClock& clock, FleetOutbox& outbox);

  // The cluster as it is now.
  void Observe(const FleetView& view);
  const FleetView& view() const { return view_; }

  // What providers answer, as of Fleet.
  void AcquireEnded(uint64_t order, const Status& status);
  void ReleaseEnded(size_t kind, const std::string& id, const Status& status);
  void Listed(size_t kind, const Result<std::vector<ListedMachine>>& machines);
  void PriceReported(size_t kind, const Result<std::optional<double>>& usd_per_h);
  void DrainEnded(const std::string& worker, const Status& status);

  // Orders more machines.
  void Ask(size_t kind, int count);
  // One machine of the kind goes: its worker is drained first. False: none may go now.
  bool Release(size_t kind, FleetCause cause, const std::string& why);
  // Whether Release would give back a machine whose worker is not there.
  bool ReleasesAbsent(size_t kind);
  // Gives back the machines that nothing runs on.
  void SendReleases();
  // While kinds without a provider settle, what is there is what is wanted.
  void FollowDesired();

  // Whether every provider has listed what it has, or fails.
  bool Known() const;
  bool Settling(size_t kind) const;
  bool HasOrder(size_t kind) const;
  bool HasOrders() const { return !orders_.empty(); }
  bool AcquireFails(size_t kind) const {
    return kinds_[kind].troubles.Fails(ProviderCall::kAcquire);
  }
  std::string TroubleOf(size_t kind) const { return kinds_[kind].troubles.Text(); }  // "": none
  std::optional<Time> asked(size_t kind) const { return kinds_[kind].asked; }        // last
  Time started() const { return started_; }                     // first observed
  std::optional<Time> last_lost() const { return last_lost_; }  // or got notice
  std::optional<Time> price_changed() const { return price_changed_; }

  FleetKindStatus Count(size_t kind) const;
  // `factor`: what machines do of what the file says.
  std::vector<KindStanding> Standings(double factor) const;
  // Requests per second that the machines that serve answer, as the file says.
  double NominalRate() const;
  // Machines cost from the moment that they are listed until their provider no longer lists them.
  double UsdPerHour() const;

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
    std::string drain_text;  // logged once the drain has begun; empty: it was logged
    std::string refused;     // why the controller has refused last, which was logged
    bool release_sent = false;
    Time release_at;  // not before
  };
  struct Order {
    uint64_t id = 0;
    size_t kind = 0;
    int count = 0;
    Time since;
  };
  struct Kind {
    std::vector<Machine> machines;   // in the provider's order
    bool listed = false;             // its provider has answered once
    std::optional<size_t> expected;  // so many machines should be listed next
    std::optional<double> reported_usd_per_h;
    int desired = 0;  // of a kind without a provider: what the metric says
    Time desired_since;
    std::optional<Time> asked;  // for machines, last
    ProviderTroubles troubles;
  };

  static constexpr size_t kNameBytes = 64;  // of a machine or worker, as it is shown

  const FleetMember* FindMember(const std::string& worker) const;
  // Which kinds the members are of: by the machine, or by the beginning of the name.
  void MapWorkers();
  std::optional<size_t> KindOf(const FleetMember& member) const;
  std::optional<double> PriceOf(size_t kind) const;
  void Follow(size_t kind);
  void FollowDrain(Machine& machine, const FleetMember* member);
  void GiveUpAbsent(size_t kind);
  void SendReleases(size_t kind);
  Machine* FindMachine(size_t kind, const std::string& id);
  bool OthersHave(size_t kind, const ListedMachine& machine) const;
  Machine* MachineToRelease(size_t kind);
  void Drain(Machine& machine, const FleetMember& member);
  void Fail(size_t kind, ProviderCall call, const std::string& text);
  void Recover(size_t kind, ProviderCall call);
  void Log(size_t kind, const std::optional<std::string>& text);

  const FleetSpec& spec_;
  const FleetClock& clock_;
  FleetOutbox& outbox_;
  std::vector<Kind> kinds_;
  std::vector<Order> orders_;
  uint64_t last_order_ = 0;
  FleetView view_;
  std::map<std::string, size_t> member_at_;     // in view_, by worker
  std::map<std::string, size_t> machine_kind_;  // of every machine, by worker
  std::map<std::string, size_t> member_kind_;   // of the members that are of a kind, by worker
  bool observed_ = false;
  Time started_;
  std::optional<Time> last_lost_, price_changed_;
};

}  // namespace millrace::cluster
