// Fleet: machines, and what their providers answer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"
#include "cluster/fleet/fleet.h"

namespace millrace::cluster {
namespace {

constexpr Duration kBackOffFirst = Duration::Seconds(5), kBackOffMost = Duration::Seconds(300);
// A machine whose worker has not joined after so many times its startup is given back.
constexpr int kGiveUpStartups = 5;
constexpr Duration kGiveUpStartupMin = Duration::Seconds(60);
constexpr Duration kReleaseAgain = Duration::Seconds(60);  // it is still listed after so long
constexpr double kMachinePriceMax = 1e4;                   // USD per hour, as in files
constexpr double kPriceChange = 0.01;                      // a smaller share is no change
constexpr size_t kShownBytes = 200;

}  // namespace

Fleet::Machine* Fleet::FindMachine(size_t kind, const std::string& id) {
  const auto found = std::ranges::find(kinds_[kind].machines, id, &Machine::id);
  return found == kinds_[kind].machines.end() ? nullptr : &*found;
}

void Fleet::Fail(size_t kind, Trouble& trouble, const std::string& text) {
  std::string shown = Printable(text, kShownBytes);
  const Kind& own = kinds_[kind];
  const bool known = !trouble.text.empty() || own.acquire.text == shown ||
                     own.release.text == shown || own.list.text == shown || own.price.text == shown;
  trouble.text = std::move(shown);
  Duration pause = kBackOffFirst;
  for (int i = 0; i < trouble.failures && pause < kBackOffMost; ++i) pause = pause + pause;
  pause = std::min(pause, kBackOffMost);
  ++trouble.failures;
  trouble.until = now_ + pause;
  if (known) return;
  Log(FleetCause::kProvider,
      fmt::format("{}: {}; it is tried again, at most {:.0f} s later, and the cluster goes on with "
                  "the machines that it has",
                  spec_.kinds[kind].name, trouble.text, kBackOffMost.seconds()));
}

void Fleet::Recover(size_t kind, Trouble& trouble) {
  if (trouble.text.empty()) return;
  trouble = {};
  const Kind& own = kinds_[kind];
  if (!own.acquire.text.empty() || !own.release.text.empty() || !own.list.text.empty() ||
      !own.price.text.empty()) {
    return;
  }
  Log(FleetCause::kProvider,
      fmt::format("{}: the provider does again what it is asked", spec_.kinds[kind].name));
}

// ---- what the view says of a kind's machines

void Fleet::Follow(size_t k) {
  for (Machine& machine : kinds_[k].machines) {
    const FleetMember* member = FindMember(machine.worker);
    if (machine.held == Held::kDraining) {
      FollowDrain(machine, member);
      continue;
    }
    const bool present = member != nullptr && member->usable;
    machine.joined = machine.joined || present;
    if (present) {
      machine.absent_since = now_;
    } else if (machine.present && machine.held == Held::kInUse) {
      last_lost_ = now_;
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

void Fleet::Drain(Machine& machine, const FleetMember& member) {
  machine.held = Held::kDraining;
  machine.drained_id = member.id;
  machine.drain_seen = false;
  actions_.push_back(DrainMachine{machine.worker});
}

void Fleet::FollowDrain(Machine& machine, const FleetMember* member) {
  if (member == nullptr || member->id != machine.drained_id) {
    machine.held = Held::kReleasing;  // it has left; a worker of this name now is a new one
    machine.release_at = now_;
    return;
  }
  if (member->draining) machine.drain_seen = true;
  if (!machine.drain_seen || member->draining) return;
  machine.held = Held::kInUse;  // the controller has given the drain up
  machine.absent_since = now_;
  machine.keep_until = now_ + spec_.cool_down;
}

// Machines whose workers do not come are given back: nothing runs there.
void Fleet::GiveUpAbsent(size_t k) {
  Kind& kind = kinds_[k];
  const Duration startup = std::max(spec_.kinds[k].startup, kGiveUpStartupMin);
  for (Machine& machine : kind.machines) {
    const FleetMember* member = FindMember(machine.worker);
    if (machine.held != Held::kInUse || (member != nullptr && member->under_notice)) continue;
    if (now_ - machine.absent_since <= Duration{startup.ns * kGiveUpStartups}) continue;
    const bool last =
        spec_.kinds[k].provider != FleetProvider::kKubernetes || &machine == &kind.machines.back();
    if (!last) continue;  // a StatefulSet gives back its last pod only
    Fail(k, kind.acquire,
         fmt::format("the worker of machine {} has not joined in {:.0f} s, so it is given back: "
                     "look at that machine, or raise startup",
                     Printable(machine.id, kNameBytes), (now_ - machine.absent_since).seconds()));
    if (member != nullptr) {  // it has joined, and cannot load layers
      Drain(machine, *member);
    } else {
      machine.held = Held::kReleasing;
      machine.release_at = now_;
    }
  }
}

void Fleet::SendReleases(size_t k) {
  Kind& kind = kinds_[k];
  const bool ordered = spec_.kinds[k].provider == FleetProvider::kKubernetes;
  for (Machine& machine : kind.machines) {
    if (machine.held != Held::kReleasing || now_ < machine.release_at) continue;
    if (ordered && &machine != &kind.machines.back()) continue;
    if (machine.release_sent) {  // and its provider lists it still
      machine.release_sent = now_ - machine.release_at < kReleaseAgain;
      continue;
    }
    machine.release_sent = true;
    machine.release_at = now_;
    actions_.push_back(ReleaseMachine{.kind = k, .id = machine.id});
  }
}

// ---- answers

void Fleet::AcquireEnded(uint64_t order, const Status& status, Time now) {
  Pass(now);
  const auto found = std::ranges::find(orders_, order, &Order::id);
  if (found == orders_.end()) return;
  const Order ended = *found;
  orders_.erase(found);
  Kind& kind = kinds_[ended.kind];
  if (!status.ok()) return Fail(ended.kind, kind.acquire, status.message());
  kind.expected = kind.machines.size() + static_cast<size_t>(ended.count);
}

void Fleet::ReleaseEnded(size_t k, const std::string& id, const Status& status, Time now) {
  Pass(now);
  if (k >= kinds_.size()) return;
  Machine* machine = FindMachine(k, id);
  if (machine == nullptr || machine->held != Held::kReleasing) return;
  if (status.ok())
    return Recover(k, kinds_[k].release);  // its provider's list tells that it is gone
  Fail(k, kinds_[k].release, status.message());
  machine->release_sent = false;
  machine->release_at = kinds_[k].release.until;
}

bool Fleet::OthersHave(size_t kind, const ListedMachine& listed) const {
  const auto found = machine_kind_.find(listed.worker);
  return found != machine_kind_.end() && found->second != kind;
}

void Fleet::Listed(size_t k, const Result<std::vector<ListedMachine>>& listed, Time now) {
  Pass(now);
  if (k >= kinds_.size()) return;
  Kind& kind = kinds_[k];
  if (!listed.ok()) return Fail(k, kind.list, listed.status().message());
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
    machines.push_back({.id = one.id, .worker = one.worker, .absent_since = now_});
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
  wrong.empty() ? Recover(k, kind.list) : Fail(k, kind.list, wrong);
  const size_t have = kind.machines.size();
  const std::optional<size_t> expected = std::exchange(kind.expected, std::nullopt);
  if (vanished) {
    Fail(k, kind.acquire, "a machine went away before its worker had joined");
  } else if (expected && have < *expected) {
    Fail(k, kind.acquire,
         fmt::format("it gave {} machines fewer than it was asked for", *expected - have));
  } else if (expected) {
    Recover(k, kind.acquire);
  }
}

void Fleet::PriceReported(size_t k, const Result<std::optional<double>>& said, Time now) {
  Pass(now);
  if (k >= kinds_.size()) return;
  Kind& kind = kinds_[k];
  if (!said.ok()) return Fail(k, kind.price, said.status().message());
  const std::optional<double>& usd = *said;
  if (usd && !(*usd >= 0 && *usd <= kMachinePriceMax)) {
    return Fail(k, kind.price,
                fmt::format("its price is {} USD/h, which is not in [0, {:.0f}]; the price before "
                            "holds",
                            *usd, kMachinePriceMax));
  }
  Recover(k, kind.price);
  const std::optional<double> before = PriceOf(k);
  kind.said_usd_per_h = usd;
  const std::optional<double> after = PriceOf(k);
  if (before == after) return;
  if (before && after && std::abs(*after - *before) <= kPriceChange * *before) return;
  const auto text = [](const std::optional<double>& price) {
    return price ? fmt::format("{:.4g} USD/h", *price) : "not known";
  };
  Log(FleetCause::kPriceChanged, fmt::format("{}: the price of a machine was {} and is {}",
                                             spec_.kinds[k].name, text(before), text(after)));
  price_changed_ = now_;
}

void Fleet::DrainEnded(const std::string& worker, const Status& status, Time now) {
  Pass(now);
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const auto found = std::ranges::find(kinds_[k].machines, worker, &Machine::worker);
    if (found == kinds_[k].machines.end() || found->held != Held::kDraining) continue;
    const std::string begun = std::exchange(found->drain_text, {});
    if (status.ok() && !begun.empty()) Log(found->why_drained, begun);
    if (status.ok() || status.code() == StatusCode::kNotFound) return;  // it has left already
    found->held = Held::kInUse;
    found->absent_since = now_;
    found->keep_until = now_ + spec_.cool_down;
    if (std::exchange(found->refused, status.message()) == status.message()) return;
    Log(FleetCause::kProvider,
        fmt::format("{} stays: the controller cannot drain it: {}", Printable(worker, kNameBytes),
                    Printable(status.message(), kShownBytes)));
    return;
  }
}

}  // namespace millrace::cluster
