// FleetWorld: providers, machines and workers around a Fleet, for its tests. A step is a second.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cluster/fleet/fleet.h"

namespace millrace::cluster {

class FleetWorld {
 public:
  struct Provider {
    int startup_s = 20;           // until a worker joins
    bool fails = false;           // every call
    bool gives_none = false;      // takes the order, and lists nothing
    int extra = 0;                // machines beside those asked for
    bool never_joins = false;     // machines come, their workers do not
    std::optional<double> price;  // what it says
  };
  struct Machine {
    std::string id;
    size_t kind = 0;
    int64_t joins_s = 0;
  };
  struct Member {
    uint64_t id = 0;
    bool draining = false, under_notice = false;
    int64_t leaves_s = 0;
  };

  explicit FleetWorld(FleetSpec spec, const LatencyLimits& limits = {})
      : providers(spec.kinds.size()), fleet(std::move(spec), limits) {}

  static FleetKind Kind(std::string name, double usd, bool spot, int min, int max, double rate) {
    FleetKind kind;
    kind.name = name;
    kind.provider = FleetProvider::kExec;
    kind.usd_per_h = usd;
    kind.spot = spot;
    kind.min = min;
    kind.max = max;
    kind.requests_per_s = rate;
    kind.startup = Duration::Seconds(30);
    kind.workers = name + "-";
    return kind;
  }

  Time now() const { return Time{second * 1'000'000'000}; }

  // One second: requests arrive, workers join and leave, the fleet looks, its orders are done.
  void Step() {
    ++second;
    Serve();
    for (const auto& [id, machine] : machines) {
      if (!providers[machine.kind].never_joins && machine.joins_s == second) {
        members[id] = {.id = ++last_member};
      }
    }
    std::erase_if(members, [&](const auto& member) {
      return (member.second.draining && member.second.leaves_s <= second);
    });
    for (size_t k = 0; k < providers.size(); ++k) {
      if (second % 10 == 1) List(k);
      if (second % 10 == 1 && providers[k].price) {
        fleet.PriceReported(k, std::optional(*providers[k].price), now());
      }
    }
    FleetView view{.waiting = waiting.size()};
    for (const auto& [name, member] : members) {
      view.members.push_back({.id = member.id,
                              .worker = name,
                              .draining = member.draining,
                              .under_notice = member.under_notice});
    }
    fleet.Observe(view, now());
    std::vector<FleetAction> actions;
    fleet.TakeActions(actions);
    for (const FleetAction& action : actions) {
      std::visit([this](const auto& one) { Do(one); }, action);
    }
  }
  // Requests come, and are answered as far as the workers can; the others wait.
  void Serve() {
    constexpr size_t kWaitingMax = 50;
    owed += requests_per_s;
    const double gap_s = 1 / std::max(1.0, owed);
    for (double at_s = -1 + gap_s; owed >= 1; owed -= 1, at_s += gap_s) {
      const RequestId id(++last_request);
      fleet.Arrived(id, 10, now() + Duration::Seconds(at_s));
      if (waiting.size() < kWaitingMax) waiting.push_back(id);
    }
    double rate = 0;
    for (const auto& [name, member] : members) {
      const size_t kind = machines.contains(name) ? machines.at(name).kind : 0;
      if (!member.draining) rate += fleet.spec().kinds[kind].requests_per_s * truth;
    }
    can = std::min(can + rate, std::max(1.0, rate));
    for (; can >= 1 && !waiting.empty(); can -= 1) {
      RequestOutput output;
      output.request = waiting.front();
      output.finish = FinishReason::kLength;
      output.times = RequestTimes{.arrived = now()};
      fleet.Heard(output, now());
      waiting.pop_front();
    }
  }
  void Run(int seconds) {
    for (int i = 0; i < seconds; ++i) Step();
  }

  void Do(const AcquireMachines& order) {
    ++acquires;
    const Provider& provider = providers[order.kind];
    if (provider.fails) return fleet.AcquireEnded(order.order, Unavailable("no quota"), now());
    const int count = provider.gives_none ? 0 : order.count + provider.extra;
    for (int i = 0; i < count; ++i) AddMachine(order.kind);
    fleet.AcquireEnded(order.order, OkStatus(), now());
    List(order.kind);
  }
  void Do(const DrainMachine& drain) {
    ++drains;
    const auto member = members.find(drain.worker);
    if (member == members.end()) return fleet.DrainEnded(drain.worker, NotFound("gone"), now());
    if (refuses_drains) {
      return fleet.DrainEnded(drain.worker, FailedPrecondition("no other worker"), now());
    }
    member->second.draining = true;
    member->second.leaves_s = second + 5;
    drained[drain.worker] = second;
    fleet.DrainEnded(drain.worker, OkStatus(), now());
  }
  void Do(const ReleaseMachine& release) {
    ++releases;
    constexpr int64_t kDrained_s = 30;
    EXPECT_TRUE(!members.contains(release.id) ||
                (drained.contains(release.id) && second - drained[release.id] < kDrained_s))
        << release.id << " is released while its worker serves";
    if (providers[release.kind].fails) {
      return fleet.ReleaseEnded(release.kind, release.id, Unavailable("no answer"), now());
    }
    machines.erase(release.id);
    fleet.ReleaseEnded(release.kind, release.id, OkStatus(), now());
    List(release.kind);
  }
  void Do(const FleetLogged& said) {
    events.push_back(fmt::format("{}: {}", FleetCauseName(said.event.cause), said.event.text));
  }

  void AddMachine(size_t kind) {
    const std::string id = fmt::format("{}-{}", fleet.spec().kinds[kind].name, ++last_machine);
    machines[id] = {id, kind, second + providers[kind].startup_s};
  }
  void List(size_t k) {
    if (providers[k].fails) return fleet.Listed(k, Unavailable("no answer"), now());
    std::vector<ListedMachine> listed;
    for (const auto& [id, machine] : machines) {
      if (machine.kind == k) listed.push_back({id, id});
    }
    fleet.Listed(k, listed, now());
  }
  // A machine goes away, with its worker.
  // By value: the id may be a key of `machines`.
  void Lose(std::string id) {
    machines.erase(id);
    members.erase(id);
  }

  int Count(size_t kind) const {  // machines that are not under notice
    return static_cast<int>(std::ranges::count_if(machines, [&](const auto& machine) {
      const auto member = members.find(machine.first);
      return machine.second.kind == kind &&
             (member == members.end() || !member->second.under_notice);
    }));
  }
  int Said(std::string_view text) const {
    return static_cast<int>(std::ranges::count_if(
        events, [&](const std::string& event) { return event.find(text) != std::string::npos; }));
  }
  std::optional<int> Wanted(size_t kind) const { return fleet.Describe(now()).kinds[kind].wanted; }

  std::vector<Provider> providers;
  std::map<std::string, Machine> machines;
  std::map<std::string, Member> members;
  std::map<std::string, int64_t> drained;  // when, last
  std::vector<std::string> events;
  double requests_per_s = 0;
  double truth = 1;  // what machines do of what the file says
  std::deque<RequestId> waiting;
  bool refuses_drains = false;
  int acquires = 0, drains = 0, releases = 0;
  int64_t second = 0;
  double owed = 0, can = 0;
  uint64_t last_request = 0, last_member = 0;
  int last_machine = 0;
  Fleet fleet;
};

}  // namespace millrace::cluster
