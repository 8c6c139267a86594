#include "tests/fault/lab.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/check.h"

namespace millrace::sim::fault {
namespace {

constexpr Duration kRestartAfter = Duration::Seconds(1);
constexpr double kTwiceProbability = 0.3;

}  // namespace

Lab::Lab(const Scenario& scenario, const LabOptions& options)
    : scenario_(scenario),
      options_(options),
      rng_(Mix64(scenario.seed ^ 0x72756e)),
      network_(scenario.places(), {}, Mix64(scenario.seed ^ 0x6e6574)),
      clients_(scenario_, *this),
      controller_(scenario_, clients_, *this),
      processes_(static_cast<size_t>(scenario.places())) {}

Lab::~Lab() = default;

template <typename... Args>
void Lab::Narrate(const char* format, const Args&... args) {
  if (!options_.narrate) return;
  fmt::print(stderr, "{:9.4f} s  {}\n", static_cast<double>(now_.ns) * 1e-9,
             fmt::format(fmt::runtime(format), args...));
}

LabReport Lab::Run() {
  processes_[0].life = 1;
  controller_.Start();
  for (int place = 1; place <= scenario_.workers; ++place) {
    processes_[place].supervised = true;
    StartWorker(place, fmt::format("w{}", place));
  }
  for (size_t q = 0; q < scenario_.test_requests.size(); ++q) {
    const TestRequest& test_request = scenario_.test_requests[q];
    events_.Push(test_request.at, {.kind = Event::Kind::kAsk, .x = q});
    if (test_request.abort_at)
      events_.Push(*test_request.abort_at, {.kind = Event::Kind::kAbort, .x = q});
  }
  for (size_t f = 0; f < scenario_.faults.size(); ++f) {
    events_.Push(scenario_.faults[f].at, {.kind = Event::Kind::kFault, .x = f});
  }
  while (!done_ && !violation_) {
    network_.TakeDue(due_);
    for (const Network::Due& due : due_) {
      events_.Push(due.at, {.kind = Event::Kind::kNetwork, .due = due});
    }
    due_.clear();
    if (++event_ > options_.events_max) {
      Broken(Invariant::kEndsInTime, fmt::format("more than {} events", options_.events_max));
      break;
    }
    now_ = std::max(now_, events_.next_time());
    Event event = events_.Pop();
    Handle(event);
  }
  return Report();
}

void Lab::Timer(int place, Duration delay, TimerKind kind, uint64_t x) {
  events_.Push(now_ + delay, {.kind = Event::Kind::kTimer,
                              .place = place,
                              .life = processes_[place].life,
                              .timer = kind,
                              .x = x});
}

void Lab::MeantFor(NetworkConnectionId connection, Incarnation incarnation) {
  meant_for_[connection] = incarnation;
}

Worker* Lab::Find(Incarnation incarnation) {
  const auto place = place_of_.find(incarnation);
  if (place == place_of_.end()) return nullptr;
  Worker* const worker = processes_[place->second].worker.get();
  return worker && worker->incarnation() == incarnation ? worker : nullptr;
}

void Lab::Broken(Invariant invariant, std::string what) {
  if (violation_) return;
  violation_ = Violation{invariant, std::move(what), event_, static_cast<double>(now_.ns) * 1e-9};
}

void Lab::Handle(Event& event) {
  switch (event.kind) {
    case Event::Kind::kNetwork:
      if (auto delivery = network_.Pump(event.due, now_)) OnDelivery(std::move(*delivery));
      return;
    case Event::Kind::kTimer: return OnTimer(event);
    case Event::Kind::kAsk:
    case Event::Kind::kAbort:
      // Clients retry until a controller answers.
      if (!controller_.alive() || stopped(0)) {
        events_.Push(now_ + Duration::Millis(100), std::move(event));
        return;
      }
      if (event.kind == Event::Kind::kAsk) {
        controller_.Ask(event.x);
      } else if (!clients_.accepted(event.x)) {
        events_.Push(now_ + Duration::Millis(100), std::move(event));
        return;
      } else if (!clients_.ended(event.x)) {
        controller_.Abort(event.x);
      }
      return AuditEvent(0);
    case Event::Kind::kFault: return Inject(event.x);
    case Event::Kind::kFaultEnd: return Heal(event.x);
    case Event::Kind::kRevive:
      if (event.place == 0) {
        if (controller_.alive()) return;
        network_.Revive(0);
        ++processes_[0].life;
        controller_.Start();
        return AuditEvent(0);
      }
      if (!processes_[event.place].worker) StartWorker(event.place, processes_[event.place].name);
      return;
    case Event::Kind::kEnd:
      AuditEnd();
      done_ = true;
      return;
  }
}

void Lab::OnDelivery(Delivery delivery) {
  const int place = delivery.to;
  if (place == 0) {
    if (!controller_.alive()) return;
    controller_.Deliver(std::move(delivery));
    return AuditEvent(0);
  }
  Worker* const worker = processes_[place].worker.get();
  if (!worker) return;
  // The handshake: the process there may no longer be the intended one.
  const auto meant = meant_for_.find(delivery.connection);
  if (delivery.payload && meant != meant_for_.end() && meant->second != worker->incarnation() &&
      !std::holds_alternative<PullAnswer>(*delivery.payload) &&
      network_.open(delivery.connection, place)) {
    return network_.Close(delivery.connection, place, now_);
  }
  worker->Deliver(std::move(delivery));
  Reap(place);
  AuditEvent(place);
}

void Lab::OnTimer(Event& event) {
  Process& process = processes_[event.place];
  if (event.life != process.life) return;
  if (process.stops > 0) {
    process.late.push_back(std::move(event));
    return;
  }
  if (event.place == 0) {
    controller_.OnTick();
    AuditTick();
    return AuditEvent(0);
  }
  process.worker->OnTimer(event.timer, event.x);
  Reap(event.place);
  AuditEvent(event.place);
}

void Lab::StartWorker(int place, const std::string& name) {
  Process& process = processes_[place];
  ++process.life;
  process.name = name;
  network_.Revive(place);
  const Incarnation incarnation(next_incarnation_++);
  place_of_[incarnation] = place;
  WorkerOptions o;
  o.bit_class = scenario_.ClassOf(name);
  o.model = scenario_.ModelOf(o.bit_class);
  o.name = name;
  o.place = place;
  o.incarnation = incarnation;
  o.memory_tokens = scenario_.memory_tokens;
  o.tight_memory = scenario_.tight_memory;
  o.core.join.name = name;
  o.core.join.address.incarnation = incarnation;
  o.core.join.address.control = std::to_string(place);
  o.core.join.memory_bytes = 1 << 30;
  o.core.join.identity.model_fingerprint = Scenario::kModelFingerprint;
  o.core.join.identity.numeric_class =
      Scenario::NumericClass(options_.defect == Defect::kFalseClass ? 0 : o.bit_class);
  process.worker = std::make_unique<Worker>(std::move(o), static_cast<World&>(*this));
  Narrate("worker {} starts at place {}", name, place);
  process.worker->Start();
}

void Lab::Kill(int place, bool quietly) {
  Process& process = processes_[place];
  if (place == 0) {
    if (!controller_.alive()) return;
    controller_.Kill();
  } else {
    if (!process.worker) return;
    CountWorker(place);
    process.worker.reset();
  }
  ++process.life;
  process.stops = 0;
  process.late.clear();
  network_.Kill(place, quietly, now_);
}

void Lab::ReviveLater(int place, Duration delay) {
  events_.Push(now_ + delay, {.kind = Event::Kind::kRevive, .place = place});
}

// Removes a process that ended by itself.
void Lab::Reap(int place) {
  Process& process = processes_[place];
  if (!process.worker || !process.worker->exited()) return;
  Narrate("worker {} at place {} ends", process.name, place);
  Kill(place, false);
  if (process.supervised) ReviveLater(place, kRestartAfter);
}

void Lab::Stop(int place, bool stop) {
  Process& process = processes_[place];
  process.stops += stop ? 1 : -1;
  if (process.stops > 0) {
    network_.Stop(place, true, now_);
    return;
  }
  // Timers that expired meanwhile fire now: before or after the messages that arrived meanwhile.
  const Duration after = Duration::Micros(rng_.Between(0, 1) ? 500 : 0);
  for (Event& event : std::exchange(process.late, {})) {
    events_.Push(now_ + after, std::move(event));
  }
  network_.Stop(place, false, now_);
}

void Lab::Pause(size_t fault) {
  for (int place = 0; place < std::ssize(processes_); ++place) {
    const bool runs = place == 0 ? controller_.alive() : processes_[place].worker != nullptr;
    if (!runs) continue;
    paused_[fault].emplace_back(place, processes_[place].life);
    Stop(place, true);
  }
}

void Lab::Resume(size_t fault) {
  for (const auto& [place, life] : paused_[fault]) {
    if (processes_[place].life == life) Stop(place, false);
  }
}

void Lab::Inject(size_t index) {
  const Fault& f = scenario_.faults[index];
  Process& victim = processes_[f.a];
  uint64_t life = victim.life;
  Narrate("{} {} {} for {} ms", FaultName(f.kind), f.a, f.b, f.lasts.ns / 1'000'000);
  ++report_.faults[static_cast<size_t>(f.kind)];
  switch (f.kind) {
    case FaultKind::kKill:
    case FaultKind::kTwoLosses:
    case FaultKind::kVanish: Kill(f.a, f.kind == FaultKind::kVanish); break;
    case FaultKind::kStop:
      if (!victim.worker) return;
      Stop(f.a, true);
      break;
    case FaultKind::kHangCompute:
      if (victim.worker) victim.worker->HangCompute(f.extra);
      return;
    case FaultKind::kStill:
      if (victim.worker) victim.worker->StandStill(f.lasts);
      return;
    case FaultKind::kCut: network_.Cut(f.b, f.a, now_); [[fallthrough]];
    case FaultKind::kCutOneWay: network_.Cut(f.a, f.b, now_); break;
    case FaultKind::kSlow:
      network_.Slow(f.a, f.b, f.extra);
      network_.Slow(f.b, f.a, f.extra);
      break;
    case FaultKind::kReset: return network_.ResetLink(f.a, f.b, now_);
    case FaultKind::kTwice:
      network_.Duplicate(f.a, f.b, kTwiceProbability);
      network_.Duplicate(f.b, f.a, kTwiceProbability);
      break;
    case FaultKind::kSameName: {
      const int spare = scenario_.workers + 1;
      if (!processes_[spare].worker) StartWorker(spare, victim.name);
      return;
    }
    case FaultKind::kLeave:
      if (victim.worker && victim.stops == 0) {
        victim.worker->SetNotice(MachineNotice{.origin = f.origin, .deadline = now_ + f.lasts});
        Reap(f.a);
      }
      break;
    case FaultKind::kDrain:
      if (controller_.alive() && !stopped(0)) controller_.Drain(victim.name);
      return AuditEvent(0);
    case FaultKind::kMigrate:
      if (controller_.alive() && !stopped(0)) {
        controller_.Migrate(index % clients_.size(), victim.name);
      }
      return AuditEvent(0);
    case FaultKind::kPlan:
      if (controller_.alive() && !stopped(0)) {
        controller_.Apply(scenario_.later_plans[next_plan_++ % scenario_.later_plans.size()]);
      }
      return AuditEvent(0);
    case FaultKind::kStopController:
      if (!controller_.alive()) return;
      life = processes_[0].life;
      Stop(0, true);
      break;
    case FaultKind::kPause: Pause(index); break;
    case FaultKind::kRestoredStore: controller_.LoseStore(); [[fallthrough]];
    case FaultKind::kRestartController: Kill(0, false); break;
  }
  fault_life_[index] = life;
  events_.Push(now_ + f.lasts, {.kind = Event::Kind::kFaultEnd, .x = index});
}

// A stopped process hears of it later.
void Lab::Withdraw(size_t fault) {
  Process& process = processes_[scenario_.faults[fault].a];
  if (process.stops > 0) {
    events_.Push(now_ + kRestartAfter, {.kind = Event::Kind::kFaultEnd, .x = fault});
    return;
  }
  if (!process.worker) return;
  ++report_.withdrawn;
  process.worker->SetNotice(std::nullopt);
  Reap(scenario_.faults[fault].a);
}

void Lab::Heal(size_t index) {
  const Fault& f = scenario_.faults[index];
  const uint64_t life = fault_life_[index];
  switch (f.kind) {
    case FaultKind::kKill:
    case FaultKind::kTwoLosses:
    case FaultKind::kVanish: return ReviveLater(f.a, {});
    case FaultKind::kStop:
      if (processes_[f.a].life == life) Stop(f.a, false);
      return;
    case FaultKind::kStopController:
      if (processes_[0].life == life) Stop(0, false);
      return;
    case FaultKind::kCut: network_.Mend(f.b, f.a, now_); [[fallthrough]];
    case FaultKind::kCutOneWay: return network_.Mend(f.a, f.b, now_);
    case FaultKind::kSlow: network_.Slow(f.a, f.b, {}); return network_.Slow(f.b, f.a, {});
    case FaultKind::kTwice: network_.Duplicate(f.a, f.b, 0); return network_.Duplicate(f.b, f.a, 0);
    case FaultKind::kLeave:
      if (processes_[f.a].life != life) return;
      if (f.withdrawn) return Withdraw(index);
      Kill(f.a, true);
      return ReviveLater(f.a, kRestartAfter);
    case FaultKind::kPause: return Resume(index);
    case FaultKind::kRestoredStore:
    case FaultKind::kRestartController: return ReviveLater(0, {});
    default: return;
  }
}

}  // namespace millrace::sim::fault
