// Lab: one fault schedule: the production ControllerCore and WorkerCores over modelled links,
// clocks and devices, with the faults of a Scenario, audited after every event. A function of the
// scenario: the same seed gives the same events. One thread; labs share nothing.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/machines/event_queue.h"
#include "tests/fault/clients.h"
#include "tests/fault/controller_process.h"
#include "tests/fault/invariants.h"
#include "tests/fault/network.h"
#include "tests/fault/scenario.h"
#include "tests/fault/worker.h"
#include "tests/fault/world.h"

namespace millrace::sim::fault {

struct LabOptions {
  Defect defect = Defect::kNone;
  // Check every block of every pipeline after each `audit_every` events of the controller; cheap
  // checks run after every event.
  int audit_every = 1;
  uint64_t events_max = 2'000'000;
  bool narrate = false;  // one line per fault, join, loss and end on stderr
};

struct LabReport {
  std::optional<Violation> violation;
  uint64_t events = 0, messages = 0, duplicates = 0, tokens = 0, errors = 0, batches = 0;
  uint64_t pulls_served = 0, pulls_failed = 0, collectives = 0, operations_refused = 0;
  double virtual_s = 0;
  std::array<uint64_t, kFaultKinds> faults = {};
  uint64_t withdrawn = 0;          // notices, of workers that were still there
  uint64_t autopilot_changes = 0;  // of the plan
  ControllerTotals controller;
  uint64_t stale_at_workers = 0;
};

class Lab : private World {
 public:
  Lab(const Scenario& scenario, const LabOptions& options);
  ~Lab() override;
  LabReport Run();

 private:
  struct Event {
    enum class Kind : uint8_t { kNetwork, kTimer, kAsk, kAbort, kFault, kFaultEnd, kRevive, kEnd };
    Kind kind = Kind::kEnd;
    Network::Due due;
    int place = 0;
    uint32_t life = 0;
    TimerKind timer = TimerKind::kTick;
    uint64_t x = 0;
  };
  struct Process {
    std::unique_ptr<Worker> worker;
    std::string name;
    uint32_t life = 0;  // incremented at every start and end
    int stops = 0;
    bool supervised = false;
    std::vector<Event> late;  // timers that expired while it was stopped
  };

  // World.
  Time now() const override { return now_; }
  Network& network() override { return network_; }
  Rng& rng() override { return rng_; }
  void Timer(int place, Duration delay, TimerKind kind, uint64_t x) override;
  void MeantFor(NetworkConnectionId connection, Incarnation incarnation) override;
  Worker* Find(Incarnation incarnation) override;
  bool stopped(int place) const override { return processes_[place].stops > 0; }
  Defect defect() const override { return options_.defect; }
  void Broken(Invariant invariant, std::string what) override;

  void Handle(Event& event);
  void OnDelivery(Delivery delivery);
  void OnTimer(Event& event);
  void Inject(size_t index);
  void Heal(size_t index);
  void Pause(size_t fault);
  void Resume(size_t fault);
  void Withdraw(size_t fault);
  void StartWorker(int place, const std::string& name);
  void Kill(int place, bool quietly);
  void Stop(int place, bool stop);
  void Reap(int place);
  void ReviveLater(int place, Duration delay);
  template <typename... Args>
  void Narrate(const char* format, const Args&... args);

  // lab_audit.cc
  void AuditEvent(int place);
  void AuditWorker(const Worker& worker);
  void AuditTick();
  void AuditEnd();
  void AuditEndWorkers(const cluster::ClusterStatus& status);
  void AuditEndWorker(const Worker& worker, const cluster::WorkerStatus& member,
                      const cluster::ClusterStatus& status);
  void AuditController();
  std::string OpenRequests() const;
  LabReport Report();
  void CountWorker(int place);

  const Scenario scenario_;
  const LabOptions options_;
  Time now_;
  Rng rng_;
  Network network_;
  Clients clients_;
  ControllerProcess controller_;
  std::vector<Process> processes_;  // indexed by place
  std::unordered_map<NetworkConnectionId, Incarnation> meant_for_;
  std::unordered_map<Incarnation, int> place_of_;
  uint64_t next_incarnation_ = 1;
  size_t next_plan_ = 0;
  EventQueue<Event> events_;
  std::vector<Network::Due> due_;
  uint64_t event_ = 0;
  uint64_t audits_ = 0;
  std::optional<Violation> violation_;
  bool ending_ = false, done_ = false;
  std::map<size_t, std::vector<std::pair<int, uint32_t>>> paused_;  // places and lives, by fault
  std::unordered_map<size_t, uint64_t> fault_life_;  // of the victim, at the time of the fault
  LabReport report_;
};

}  // namespace millrace::sim::fault
