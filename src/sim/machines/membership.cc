#include "sim/machines/membership.h"

#include <algorithm>
#include <deque>
#include <utility>

namespace millrace::sim {
namespace {

using What = MembershipChange::What;

// Tracks which machine carries which instance during a trace.
class Carriers {
 public:
  explicit Carriers(const MembershipOptions& options)
      : options_(options), of_(static_cast<size_t>(options.instances)), came_s_(of_.size()) {}

  void Come(int machine, double at_s) {
    const auto free = std::find(of_.begin(), of_.end(), std::nullopt);
    if (free == of_.end()) {
      spare_.push_back(machine);
      return;
    }
    Carry(static_cast<int>(free - of_.begin()), machine, at_s);
  }

  void Go(int machine, double at_s) {
    const auto spare = std::find(spare_.begin(), spare_.end(), machine);
    if (spare != spare_.end()) {
      spare_.erase(spare);
      return;
    }
    const auto at = std::find(of_.begin(), of_.end(), machine);
    if (at == of_.end()) return;
    const int instance = static_cast<int>(at - of_.begin());
    const double came_s = came_s_[static_cast<size_t>(instance)];
    Say(std::max(at_s - options_.notice_s, came_s), instance, What::kNotice);
    Say(at_s, instance, What::kLost);
    at->reset();
    if (spare_.empty()) return;
    Carry(instance, spare_.front(), at_s);
    spare_.pop_front();
  }

  std::vector<MembershipChange> Finish() {
    std::ranges::stable_sort(changes_, {}, &MembershipChange::at);
    return std::move(changes_);
  }

 private:
  void Carry(int instance, int machine, double at_s) {
    of_[static_cast<size_t>(instance)] = machine;
    came_s_[static_cast<size_t>(instance)] = at_s;
    Say(at_s, instance, What::kCame);
    Say(at_s == 0 ? 0 : at_s + options_.load_s, instance, What::kReady);
  }

  void Say(double at_s, int instance, What what) {
    const int machine = *of_[static_cast<size_t>(instance)];
    changes_.push_back({Time{} + Duration::Seconds(at_s), instance, machine, what});
  }

  const MembershipOptions options_;
  std::vector<std::optional<int>> of_;  // by instance
  std::vector<double> came_s_;          // the same
  std::deque<int> spare_;               // oldest first
  std::vector<MembershipChange> changes_;
};

}  // namespace

std::vector<MembershipChange> MembershipOf(const AvailabilityTrace& trace,
                                           const MembershipOptions& options) {
  Carriers carriers(options);
  for (const AvailabilityEvent& event : trace.events) {
    for (const int machine : event.nodes) {
      if (event.kind == AvailabilityKind::kAdd) {
        carriers.Come(machine, event.at_s);
      } else if (event.kind == AvailabilityKind::kRemove) {
        carriers.Go(machine, event.at_s);
      }
    }
  }
  return carriers.Finish();
}

void MembershipReport::Merge(const MembershipReport& other) {
  machines = std::max(machines, other.machines);
  came += other.came;
  lost += other.lost;
  moved += other.moved;
  replayed += other.replayed;
  replayed_tokens += other.replayed_tokens;
  waited_most = std::max(waited_most, other.waited_most);
  nobody_s += other.nobody_s;
  ready_s += other.ready_s;
  paid_s += other.paid_s;
}

Availability::Change Availability::Apply(const MembershipChange& change, Time now) {
  Instance& here = instances_[static_cast<size_t>(change.instance)];
  if (change.what == What::kCame) {
    here.state = State::kLoading;
    here.machine = change.machine;
    here.came = now;
    if (now > Time{}) ++report_.came;
    return Change::kNone;
  }
  if (here.state == State::kAbsent || here.machine != change.machine) return Change::kNone;
  if (change.what == What::kReady) {
    if (here.state != State::kLoading) return Change::kNone;  // it is gone before it becomes useful
    here.state = State::kReady;
    here.ready = now;
    CountReady(now);
    return Change::kReady;
  }
  if (change.what == What::kNotice) {
    here.state = State::kLeaving;
    CountReady(now);
    return here.ready ? Change::kLeaving : Change::kNone;
  }
  const bool worked = here.ready.has_value();
  Lose(here, now);
  return worked ? Change::kLost : Change::kNone;
}

void Availability::Lose(Instance& instance, Time now) {
  ++report_.lost;
  instance.paid_s += (now - instance.came).seconds();
  if (instance.ready) instance.ready_s += (now - *instance.ready).seconds();
  instance.state = State::kAbsent;
  instance.ready.reset();
  ++instance.life;
  CountReady(now);
}

void Availability::CountReady(Time now) {
  const bool somebody =
      std::ranges::any_of(instances_, [](const Instance& i) { return i.state == State::kReady; });
  if (!somebody && !nobody_since_) nobody_since_ = now;
  if (somebody && nobody_since_) {
    report_.nobody_s += (now - *std::exchange(nobody_since_, std::nullopt)).seconds();
  }
}

double Availability::ReadySeconds(int instance, Time now) const {
  const Instance& here = at(instance);
  return here.ready_s + (here.ready ? (now - *here.ready).seconds() : 0);
}

double Availability::PaidSeconds(int instance, Time now) const {
  const Instance& here = at(instance);
  return here.paid_s + (here.state == State::kAbsent ? 0 : (now - here.came).seconds());
}

MembershipReport Availability::Report(Time now) const {
  MembershipReport report = report_;
  report.machines = static_cast<int>(instances_.size());
  for (int i = 0; i < std::ssize(instances_); ++i) {
    report.ready_s += ReadySeconds(i, now);
    report.paid_s += PaidSeconds(i, now);
  }
  if (nobody_since_) report.nobody_s += (now - *nobody_since_).seconds();
  return report;
}

}  // namespace millrace::sim
