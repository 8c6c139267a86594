#include "cluster/fleet/fleet_machines.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"

namespace millrace::cluster {
namespace {

// A machine whose worker has not joined after so many times its startup is given back.
constexpr int kGiveUpStartups = 5;
constexpr Duration kGiveUpStartupMin = Duration::Seconds(60);
constexpr Duration kReleaseAgain = Duration::Seconds(60);  // it is still listed after so long
constexpr double kMachinePriceMax = 1e4;                   // USD per hour, as in files
constexpr double kPriceChange = 0.01;                      // a smaller share is no change
constexpr size_t kShownBytes = 200;

}  // namespace

FleetMachines::FleetMachines(const FleetSpec& spec, const FleetClock& clock, FleetOutbox& outbox)
    : spec_(spec), clock_(clock), outbox_(outbox), kinds_(spec.kinds.size()) {
  for (size_t k = 0; k < kinds_.size(); ++k) kinds_[k].desired = spec_.kinds[k].min;
}

void FleetMachines::Observe(const FleetView& view) {
  if (!std::exchange(observed_, true)) started_ = clock_.now();
  for (const FleetMember& member : view.members) {
    const FleetMember* before = FindMember(member.worker);
    if (!member.under_notice || before == nullptr || before->under_notice) continue;
    last_lost_ = clock_.now();
  }
  view_ = view;
  member_at_.clear();
  for (size_t i = 0; i < view_.members.size(); ++i) member_at_.emplace(view_.members[i].worker, i);
  for (size_t k = 0; k < kinds_.size(); ++k) Follow(k);
  MapWorkers();
}

FleetMachines::Machine* FleetMachines::FindMachine(size_t kind, const std::string& id) {
  const auto found = std::ranges::find(kinds_[kind].machines, id, &Machine::id);
  return found == kinds_[kind].machines.end() ? nullptr : &*found;
}

void FleetMachines::Fail(size_t k, ProviderCall call, const std::string& text) {
  Log(k, kinds_[k].troubles.Failed(call, text, clock_.now()));
}

void FleetMachines::Recover(size_t k, ProviderCall call) {
  Log(k, kinds_[k].troubles.Succeeded(call));
}

void FleetMachines::Log(size_t k, const std::optional<std::string>& text) {
  if (text) outbox_.Log(FleetCause::kProvider, fmt::format("{}: {}", spec_.kinds[k].name, *text));
}

// ---- what the view says of a kind's machines

void FleetMachines::Follow(size_t k) {
  for (Machine& machine : kinds_[k].machines) {
    const FleetMember* member = FindMember(machine.worker);
    if (machine.held == Held::kDraining) {
      FollowDrain(machine, member);
      continue;
    }
    const bool present = member != nullptr && member->usable;
    machine.joined = machine.joined || present;
    if (present) {
      machine.absent_since = clock_.now();
    } else if (machine.present && machine.held == Held::kInUse) {
      last_lost_ = clock_.now();
    }
    machine.present = present;
    // A worker that joins before its machine could be given back takes requests: the machine stays.
    if (machine.held == Held::kReleasing && present && !machine.release_sent) {
      machine.held = Held::kInUse;
    }
  }
  std::erase_if(kinds_[k].machines, [&](const Machine& machine) {
    return !machine.listed && FindMember(machine.worker) == nullptr;
  });
  GiveUpAbsent(k);
}

void FleetMachines::Drain(Machine& machine, const FleetMember& member) {
  machine.held = Held::kDraining;
  machine.drained_id = member.id;
  machine.drain_seen = false;
  outbox_.Send(DrainMachine{machine.worker});
}

void FleetMachines::FollowDrain(Machine& machine, const FleetMember* member) {
  if (member == nullptr || member->id != machine.drained_id) {
    machine.held = Held::kReleasing;  // it has left; a worker of this name now is a new one
    machine.release_at = clock_.now();
    return;
  }
  if (member->draining) machine.drain_seen = true;
  if (!machine.drain_seen || member->draining) return;
  machine.held = Held::kInUse;  // the controller has given the drain up
  machine.absent_since = clock_.now();
  machine.keep_until = clock_.now() + spec_.cool_down;
}

// Machines whose workers do not come are given back: nothing runs there.
void FleetMachines::GiveUpAbsent(size_t k) {
  Kind& kind = kinds_[k];
  const Duration startup = std::max(spec_.kinds[k].startup, kGiveUpStartupMin);
  for (Machine& machine : kind.machines) {
    const FleetMember* member = FindMember(machine.worker);
    if (machine.held != Held::kInUse || (member != nullptr && member->under_notice)) continue;
    if (clock_.now() - machine.absent_since <= Duration{startup.ns * kGiveUpStartups}) continue;
    const bool last =
        spec_.kinds[k].provider != FleetProvider::kKubernetes || &machine == &kind.machines.back();
    if (!last) continue;  // a StatefulSet gives back its last pod only
    Fail(k, ProviderCall::kAcquire,
         fmt::format("the worker of machine {} has not joined in {:.0f} s, so it is given back: "
                     "look at that machine, or raise startup",
                     Printable(machine.id, kNameBytes),
                     (clock_.now() - machine.absent_since).seconds()));
    if (member != nullptr) {  // it has joined, and cannot load layers
      Drain(machine, *member);
    } else {
      machine.held = Held::kReleasing;
      machine.release_at = clock_.now();
    }
  }
}

void FleetMachines::SendReleases(size_t k) {
  Kind& kind = kinds_[k];
  const bool ordered = spec_.kinds[k].provider == FleetProvider::kKubernetes;
  for (Machine& machine : kind.machines) {
    if (machine.held != Held::kReleasing || clock_.now() < machine.release_at) continue;
    if (ordered && &machine != &kind.machines.back()) continue;
    if (machine.release_sent) {  // and its provider lists it still
      machine.release_sent = clock_.now() - machine.release_at < kReleaseAgain;
      continue;
    }
    machine.release_sent = true;
    machine.release_at = clock_.now();
    outbox_.Send(ReleaseMachine{.kind = k, .id = machine.id});
  }
}

// ---- answers

void FleetMachines::AcquireEnded(uint64_t order, const Status& status) {
  const auto found = std::ranges::find(orders_, order, &Order::id);
  if (found == orders_.end()) return;
  const Order ended = *found;
  orders_.erase(found);
  Kind& kind = kinds_[ended.kind];
  if (!status.ok()) return Fail(ended.kind, ProviderCall::kAcquire, status.message());
  kind.expected = kind.machines.size() + static_cast<size_t>(ended.count);
}

void FleetMachines::ReleaseEnded(size_t k, const std::string& id, const Status& status) {
  if (k >= kinds_.size()) return;
  Machine* machine = FindMachine(k, id);
  if (machine == nullptr || machine->held != Held::kReleasing) return;
  if (status.ok())
    return Recover(k, ProviderCall::kRelease);  // its provider's list tells that it is gone
  Fail(k, ProviderCall::kRelease, status.message());
  machine->release_sent = false;
  machine->release_at = kinds_[k].troubles.RetryAt(ProviderCall::kRelease);
}

bool FleetMachines::OthersHave(size_t kind, const ListedMachine& listed) const {
  const auto found = machine_kind_.find(listed.worker);
  return found != machine_kind_.end() && found->second != kind;
}

void FleetMachines::Listed(size_t k, const Result<std::vector<ListedMachine>>& listed) {
  if (k >= kinds_.size()) return;
  Kind& kind = kinds_[k];
  if (!listed.ok()) return Fail(k, ProviderCall::kList, listed.status().message());
  std::vector<Machine> machines;
  std::string wrong;
  for (const ListedMachine& one : *listed) {
    if (machines.size() == FleetSpec::kMachinesMax) {
      wrong = fmt::format("it lists more than {} machines", FleetSpec::kMachinesMax);
      break;
    }
    const auto same = [&](const Machine& m) { return m.id == one.id || m.worker == one.worker; };
    if (OthersHave(k, one) || std::ranges::any_of(machines, same)) {
      wrong = fmt::format(
          "it lists {} twice, or for two kinds; list the machines of the kind that "
          "is asked for",
          one.id);
      continue;
    }
    if (const Machine* known = FindMachine(k, one.id); known != nullptr) {
      machines.push_back(*known);
      machines.back().worker = one.worker;
      machines.back().listed = true;
      continue;
    }
    machines.push_back({.id = one.id, .worker = one.worker, .absent_since = clock_.now()});
  }
  bool vanished = false;
  for (Machine& machine : kind.machines) {
    const auto same = [&](const Machine& m) { return m.id == machine.id; };
    if (std::ranges::any_of(machines, same)) continue;
    if (FindMember(machine.worker) != nullptr) {  // it serves, whatever the list says
      machine.listed = false;
      machines.push_back(machine);
      continue;
    }
    vanished = vanished || (!machine.joined && machine.held == Held::kInUse);
  }
  kind.machines = std::move(machines);
  kind.listed = true;
  MapWorkers();
  wrong.empty() ? Recover(k, ProviderCall::kList) : Fail(k, ProviderCall::kList, wrong);
  const size_t have = kind.machines.size();
  const std::optional<size_t> expected = std::exchange(kind.expected, std::nullopt);
  if (vanished) {
    Fail(k, ProviderCall::kAcquire, "a machine went away before its worker had joined");
  } else if (expected && have < *expected) {
    Fail(k, ProviderCall::kAcquire,
         fmt::format("it gave {} machines fewer than it was asked for", *expected - have));
  } else if (expected) {
    Recover(k, ProviderCall::kAcquire);
  }
}

void FleetMachines::PriceReported(size_t k, const Result<std::optional<double>>& reported) {
  if (k >= kinds_.size()) return;
  Kind& kind = kinds_[k];
  if (!reported.ok()) return Fail(k, ProviderCall::kPrice, reported.status().message());
  const std::optional<double>& usd = *reported;
  if (usd && !(*usd >= 0 && *usd <= kMachinePriceMax)) {
    return Fail(k, ProviderCall::kPrice,
                fmt::format("its price is {} USD/h, which is not in [0, {:.0f}]; the price before "
                            "holds",
                            *usd, kMachinePriceMax));
  }
  Recover(k, ProviderCall::kPrice);
  const std::optional<double> before = PriceOf(k);
  kind.reported_usd_per_h = usd;
  const std::optional<double> after = PriceOf(k);
  if (before == after) return;
  if (before && after && std::abs(*after - *before) <= kPriceChange * *before) return;
  const auto text = [](const std::optional<double>& price) {
    return price ? fmt::format("{:.4g} USD/h", *price) : "not known";
  };
  outbox_.Log(FleetCause::kPriceChanged,
              fmt::format("{}: the price of a machine was {} and is {}", spec_.kinds[k].name,
                          text(before), text(after)));
  price_changed_ = clock_.now();
}

void FleetMachines::DrainEnded(const std::string& worker, const Status& status) {
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const auto found = std::ranges::find(kinds_[k].machines, worker, &Machine::worker);
    if (found == kinds_[k].machines.end() || found->held != Held::kDraining) continue;
    const std::string begun = std::exchange(found->drain_text, {});
    if (status.ok() && !begun.empty()) outbox_.Log(found->why_drained, begun);
    if (status.ok() || status.code() == StatusCode::kNotFound) return;  // it has left already
    found->held = Held::kInUse;
    found->absent_since = clock_.now();
    found->keep_until = clock_.now() + spec_.cool_down;
    if (std::exchange(found->refused, status.message()) == status.message()) return;
    outbox_.Log(FleetCause::kProvider, fmt::format("{} stays: the controller cannot drain it: {}",
                                                   Printable(worker, kNameBytes),
                                                   Printable(status.message(), kShownBytes)));
    return;
  }
}

// ---- what comes and goes

void FleetMachines::Ask(size_t k, int count) {
  Kind& kind = kinds_[k];
  kind.asked = clock_.now();
  if (spec_.kinds[k].provider == FleetProvider::kNone) {
    kind.desired = std::max(kind.desired, Count(k).serving) + count;
    kind.desired_since = clock_.now();
    return;
  }
  orders_.push_back({.id = ++last_order_, .kind = k, .count = count, .since = clock_.now()});
  outbox_.Send(AcquireMachines{.order = last_order_, .kind = k, .count = count});
}

// The machine of which the others need least: one whose worker is not there, else the newest.
FleetMachines::Machine* FleetMachines::MachineToRelease(size_t k) {
  const bool ordered = spec_.kinds[k].provider == FleetProvider::kKubernetes;
  Machine* chosen = nullptr;
  for (auto it = kinds_[k].machines.rbegin(); it != kinds_[k].machines.rend(); ++it) {
    if (it->held != Held::kInUse) continue;
    const FleetMember* member = FindMember(it->worker);
    const bool going = member != nullptr && (member->under_notice || member->draining);
    const bool may = it->listed && !going && clock_.now() >= it->keep_until;
    if (ordered) return may ? &*it : nullptr;  // the highest ordinal, or none
    if (!may) continue;
    if (member == nullptr) return &*it;
    if (chosen == nullptr) chosen = &*it;
  }
  return chosen;
}

bool FleetMachines::Release(size_t k, FleetCause cause, const std::string& why) {
  if (spec_.kinds[k].provider == FleetProvider::kNone) {
    const FleetKindStatus have = Count(k);
    kinds_[k].desired = have.serving + have.on_order - 1;
    outbox_.Log(cause, fmt::format("wants one {} less: {}", spec_.kinds[k].name, why));
    return true;
  }
  Machine* machine = MachineToRelease(k);
  if (machine == nullptr) return false;
  const FleetMember* member = FindMember(machine->worker);
  const std::string text =
      fmt::format("{} {} ({}): {}", member == nullptr ? "gives back" : "drains",
                  Printable(machine->id, kNameBytes), spec_.kinds[k].name, why);
  if (member == nullptr) {
    outbox_.Log(cause, text);
    machine->held = Held::kReleasing;
    machine->release_at = clock_.now();
    return true;
  }
  machine->why_drained = cause;
  machine->drain_text = text;
  Drain(*machine, *member);
  return true;
}

void FleetMachines::SendReleases() {
  for (size_t k = 0; k < kinds_.size(); ++k) SendReleases(k);
}

bool FleetMachines::Settling(size_t k) const {
  return spec_.kinds[k].provider == FleetProvider::kNone &&
         (!observed_ || clock_.now() - started_ < spec_.kinds[k].startup);
}

void FleetMachines::FollowDesired() {
  for (size_t k = 0; k < kinds_.size(); ++k) {
    if (!Settling(k)) continue;
    kinds_[k].desired = std::max(kinds_[k].desired, Count(k).serving);
  }
}

// ---- what there is

bool FleetMachines::Known() const {
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const bool asked = spec_.kinds[k].provider != FleetProvider::kNone;
    if (asked && !kinds_[k].listed && !kinds_[k].troubles.Fails(ProviderCall::kList)) return false;
  }
  return true;
}

bool FleetMachines::ReleasesAbsent(size_t k) {
  const Machine* machine = MachineToRelease(k);
  return machine != nullptr && FindMember(machine->worker) == nullptr;
}

bool FleetMachines::HasOrder(size_t k) const {
  return std::ranges::any_of(orders_, [k](const Order& order) { return order.kind == k; });
}

const FleetMember* FleetMachines::FindMember(const std::string& worker) const {
  const auto found = member_at_.find(worker);
  return found == member_at_.end() ? nullptr : &view_.members[found->second];
}

void FleetMachines::MapWorkers() {
  machine_kind_.clear();
  member_kind_.clear();
  for (size_t k = 0; k < kinds_.size(); ++k) {
    for (const Machine& machine : kinds_[k].machines) machine_kind_.emplace(machine.worker, k);
  }
  for (const FleetMember& member : view_.members) {
    std::optional<size_t> kind;
    if (const auto found = machine_kind_.find(member.worker); found != machine_kind_.end()) {
      kind = found->second;
    }
    for (size_t k = 0; k < kinds_.size() && !machine_kind_.contains(member.worker); ++k) {
      const std::string& begin = spec_.kinds[k].workers;
      const bool longer = !kind || begin.size() > spec_.kinds[*kind].workers.size();
      if (longer && member.worker.starts_with(begin)) kind = k;
    }
    if (kind) member_kind_.emplace(member.worker, *kind);
  }
}

std::optional<size_t> FleetMachines::KindOf(const FleetMember& member) const {
  const auto found = member_kind_.find(member.worker);
  return found == member_kind_.end() ? std::nullopt : std::optional(found->second);
}

// What the provider says, else the file, else what the workers of that kind were told.
std::optional<double> FleetMachines::PriceOf(size_t kind) const {
  if (kinds_[kind].reported_usd_per_h) return kinds_[kind].reported_usd_per_h;
  if (spec_.kinds[kind].usd_per_h) return spec_.kinds[kind].usd_per_h;
  for (const FleetMember& member : view_.members) {
    if (member.usd_per_h && KindOf(member) == kind) return member.usd_per_h;
  }
  return std::nullopt;
}

FleetKindStatus FleetMachines::Count(size_t k) const {
  const Kind& kind = kinds_[k];
  const Duration startup = spec_.kinds[k].startup;
  FleetKindStatus status{.usd_per_h = PriceOf(k)};
  const auto on_order = [&](Time since, int count) {
    status.on_order += count;
    if (clock_.now() - since > startup) status.late += count;
  };
  const auto count = [&](const FleetMember& member) {
    ++(member.under_notice ? status.leaving : member.draining ? status.draining : status.serving);
  };
  for (const Machine& machine : kind.machines) {
    const FleetMember* member = FindMember(machine.worker);
    if (machine.held != Held::kInUse) {
      ++status.draining;
    } else if (member == nullptr || (!member->usable && !member->under_notice)) {
      on_order(machine.absent_since, 1);
    } else {
      count(*member);
    }
  }
  for (const FleetMember& member : view_.members) {  // of which no provider knows
    const bool listed = machine_kind_.contains(member.worker);
    if (!listed && KindOf(member) == k && member.usable) count(member);
  }
  for (const Order& order : orders_) {
    if (order.kind == k) on_order(order.since, order.count);
  }
  if (spec_.kinds[k].provider == FleetProvider::kNone && !Settling(k)) {
    const int more = kind.desired - status.serving;
    if (more > 0) on_order(kind.desired_since, more);
    status.draining += std::max(0, -more);  // they are not wanted any more
    status.serving += std::min(0, more);
  }
  return status;
}

std::vector<KindStanding> FleetMachines::Standings(double factor) const {
  std::vector<KindStanding> standings;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const FleetKind& spec = spec_.kinds[k];
    const FleetKindStatus have = Count(k);
    const Kind& kind = kinds_[k];
    standings.push_back(
        {.requests_per_s = spec.requests_per_s * factor,
         .usd_per_h = have.usd_per_h,
         .spot = spec.spot,
         .min = spec.min,
         .max = spec.max,
         .counted = have.serving + have.on_order - have.late,
         .committed = have.serving + have.on_order + have.draining,
         .obtainable = spec.provider == FleetProvider::kNone
                           ? !Settling(k)
                           : kind.listed && !kind.troubles.Fails(ProviderCall::kList) &&
                                 clock_.now() >= kind.troubles.RetryAt(ProviderCall::kAcquire)});
  }
  return standings;
}

double FleetMachines::NominalRate() const {
  double rate = 0;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    rate += Count(k).serving * spec_.kinds[k].requests_per_s;
  }
  return rate;
}

double FleetMachines::UsdPerHour() const {
  double usd = 0;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    usd += PriceOf(k).value_or(0) * static_cast<double>(kinds_[k].machines.size());
  }
  for (const FleetMember& member : view_.members) {
    if (machine_kind_.contains(member.worker)) continue;
    const std::optional<size_t> kind = KindOf(member);
    usd += (kind ? PriceOf(*kind) : member.usd_per_h).value_or(0);
  }
  return usd;
}

}  // namespace millrace::cluster
