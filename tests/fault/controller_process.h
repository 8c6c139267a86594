// ControllerProcess: the controller's process of the fault lab: the production ControllerCore, its
// sessions with workers, its clock ticks. Dies and restarts over the clients' journal. Owned by the
// lab. One thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cluster/control/controller_core.h"
#include "tests/fault/clients.h"
#include "tests/fault/lab_autopilot.h"
#include "tests/fault/scenario.h"
#include "tests/fault/world.h"

namespace millrace::sim::fault {

struct ControllerTotals {
  uint64_t pipelines_lost = 0, pipelines_opened = 0, replays = 0, moves = 0, moves_failed = 0;
  uint64_t fetched = 0, computed_in_part = 0;
  uint64_t failed_by_losses = 0, stale = 0, joins = 0, joins_refused = 0, workers_lost = 0,
           workers_still = 0;
  uint64_t plans_given_up = 0, leases_renewed = 0;
  uint64_t drained_finished = 0, drained_replayed = 0;
};

class ControllerProcess {
 public:
  ControllerProcess(const Scenario& scenario, Clients& clients, World& world);

  void Start();  // with the next term; reads the journal
  void Kill();
  // The next controller's store is another one, in which terms begin again.
  void LoseStore();
  bool alive() const { return controller_ != nullptr; }

  void Deliver(Delivery delivery);
  void OnTick();
  void Ask(size_t test_request);
  void Abort(size_t test_request);
  void Drain(const std::string& worker);
  void Migrate(size_t test_request, const std::string& worker);
  void Apply(const Plan& plan);

  const cluster::ControllerCore& controller() const { return *controller_; }
  const std::set<NetworkConnectionId>& sessions() const { return sessions_; }
  const std::set<PipelineId>& pipelines() const { return pipelines_; }
  // Over all controllers so far.
  ControllerTotals Totals() const;
  uint64_t operations_refused() const { return operations_refused_; }
  uint64_t autopilot_changes() const { return autopilot_ ? autopilot_->changes() : 0; }

 private:
  cluster::ControllerOptions Options() const;
  void Settle();
  void Deliver(RequestOutput& output);
  bool Spoil(ToWorker& message);
  void Do(cluster::SendToWorker& action);
  void Do(cluster::Disconnect& action);
  void Receive(NetworkConnectionId from, ToController message);

  const Scenario& scenario_;
  Clients& clients_;
  World& world_;
  std::unique_ptr<cluster::ControllerCore> controller_;
  std::optional<LabAutopilot> autopilot_;
  uint64_t term_ = 0;
  uint64_t store_ = 0;                      // how often it was lost
  std::set<NetworkConnectionId> sessions_;  // welcomed and not ended
  std::map<Incarnation, NetworkConnectionId> session_of_;
  std::set<PipelineId> pipelines_;  // opened and not closed, according to sent messages
  PipelineId newest_pipeline_;
  WorkerId newest_worker_;
  ControllerTotals totals_;  // of dead controllers
  uint64_t operations_refused_ = 0;
  bool dropped_ = false;
  std::vector<cluster::ControllerAction> actions_;
  std::vector<RequestOutput> outputs_;
};

}  // namespace millrace::sim::fault
