// ControllerCore: the controller of a cluster as a state machine (Orca section 4.2's control plane;
// Helix section 5; DistServe section 4.3; SpotServe section 4). Its inputs are requests, messages
// and heartbeats of workers, and the time. Its outputs are messages to workers and outputs for
// clients. It has no thread, socket, clock or random device, so the server's controller and the
// fault lab run the same object.
//
// Its parts have headers and tests of their own: Membership, Deployment (which worker holds which
// layers), Pipelines, KvMemory, Requests, Transfers (of KV between pipelines), RequestLifecycle
// (from Submit to the last output), PipelineCloser (how pipelines end), ControllerView (status).
// Deployment and retirement act in Advance only; events before it leave marks.
//
// Invariants:
//  - Requests with the same route share a pipeline, which has one scheduler and one block table per
//    request for all hops. A pipeline is opened once and never repaired. When it loses a worker,
//    its requests continue in other pipelines from the tokens they have. A delivered token is never
//    delivered again, and late messages are dropped because they name a closed pipeline.
//  - The surviving workers of a lost pipeline keep their KV until its requests have fetched it, so
//    that only the lost layers are computed again.
//  - The pipelines of a worker, and what lost ones left there, never hold more KV together than the
//    worker has (kv_memory.h).
//  - A request moves between pipelines with its KV (hand-over from prefill to decode, migration, a
//    new plan). If the transfer fails, its KV is computed again from its tokens.
//
// Files: controller_core.cc (operators' calls, time, the layout), controller_workers.cc (joins and
// losses of workers), controller_pipelines.cc (what their workers answer).
//
// The loop of a host (ControllerHost, the simulator, the fault lab):
//
//   std::vector<ControllerAction> actions;
//   std::vector<RequestOutput> outputs;
//   while (const Event event = Next()) {  // one at a time
//     const Time now = clock.Now();
//     switch (event.kind) {
//       case kRequest: event.Answer(core.Submit(event.request, now)); break;
//       case kAbort: core.Abort(event.id, event.index, now); break;
//       case kOperator: event.Answer(core.ApplyPlan(event.plan, event.names)); break;
//       case kMessage: core.Receive(event.from, event.message, now); break;  // of a worker
//       case kHeartbeat: core.Beat(event.from, event.beat, now); continue;   // forms no steps
//       case kClosed: core.ConnectionLost(event.from, event.reason, now); break;
//       case kTick: core.Tick(now); break;  // once per heartbeat interval
//     }
//     core.Advance(now);
//     core.TakeActions(actions);
//     for (ControllerAction& action : std::exchange(actions, {})) Send(action);  // in this order
//     core.TakeOutputs(outputs);
//     for (RequestOutput& output : std::exchange(outputs, {})) Deliver(output);
//   }
//
// Owned by ControllerHost, and in the fault lab by its simulated process. Used by one thread at a
// time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/control/controller_status.h"
#include "cluster/control/controller_view.h"
#include "cluster/control/layout/deployment.h"
#include "cluster/control/layout/kv_memory.h"
#include "cluster/control/layout/layout.h"
#include "cluster/control/lifecycle/pipeline_closer.h"
#include "cluster/control/lifecycle/placements.h"
#include "cluster/control/lifecycle/request_lifecycle.h"
#include "cluster/control/machine_reports.h"
#include "cluster/control/parts/id_source.h"
#include "cluster/control/parts/membership.h"
#include "cluster/control/parts/outbox.h"
#include "cluster/control/pipelines/pipelines.h"
#include "cluster/control/pipelines/ttft_forecast.h"
#include "cluster/control/routing/requests.h"
#include "cluster/control/transfers/transfers.h"
#include "core/connection_id.h"
#include "core/output.h"
#include "core/worker_messages.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

struct ControllerOptions : MembershipOptions, DeploymentOptions, PlacementOptions {
  static constexpr size_t kMovesMax = 16;  // requests that migrate at the same time

  Term term;
  std::optional<std::string> store = {};  // in which the term was won (Welcome)
  uint64_t last_id = 0;                   // IdSource: random in a server
  // For every pipeline. The layout sets the number of stages. `num_blocks` is an upper limit; 0
  // means as many as fit.
  sched::SchedulerOptions scheduler;
  // The time per output token that requests should keep (sched/step_budget.h).
  std::optional<Duration> tpot_limit;
  // Receives every line of every pipeline's step log. Empty: no step log.
  std::function<void(std::string_view)> step_log;
  // A request that has waited this long for KV is no longer overtaken by requests that would fit.
  Duration overtake_limit = Duration::Seconds(2);
  std::optional<LinkProbeOptions> link_probes;  // unset: links are not probed
  std::optional<Plan> plan;                     // instead of an automatic layout
  std::vector<std::string> node_names;

  StepWatchLimits steps;
  Duration waiting_limit = Duration::Seconds(60);  // how long a request may wait for a pipeline
  int waiting_max = 4096;                          // requests that may wait for a pipeline
  // A request that has lost this many pipelines at the same work may be what ends them: from then
  // on it is tried apart from others like it (BlameLedger).
  int deaths_max = 2;
  Duration hold_limit = Duration::Seconds(30);  // how long KV is kept for a puller that is silent
  uint64_t secret = 0;                          // random; for the nonces of KV handles and groups
};

class ControllerCore {
 public:
  // kInvalidArgument when options or plan contradict each other.
  static Result<std::unique_ptr<ControllerCore>> Create(ControllerOptions options);
  ~ControllerCore();

  // Takes a new request or, after a restart, one with `resumed`; its tokens were computed by the
  // class with the fingerprint `computed_by`, "" if that is not known. Ids are never reused.
  // kInvalidArgument: it can never fit. kResourceExhausted: too many requests wait.
  // kFailedPrecondition: its output is constrained, and there is no tokenizer. kUnavailable: every
  // pipeline has a worker that is too old for it.
  Status Submit(sched::NewRequest request, Time now, std::string_view computed_by = {}) {
    return lifecycle_.Submit(std::move(request), now, computed_by);
  }
  // Ends the request or its sequence `index`; unknown ones are ignored.
  void Abort(RequestId id, std::optional<int> index, Time now) { lifecycle_.Abort(id, index, now); }

  void Receive(ConnectionId from, ToController message, Time now);
  void Beat(ConnectionId from, const Heartbeat& beat, Time now);
  void ConnectionLost(ConnectionId connection, const Status& reason, Time now);

  // Calls of operators. kNotFound, kInvalidArgument and kFailedPrecondition carry one line that
  // says why the call was rejected.
  Status ApplyPlan(Plan plan, std::vector<std::string> node_names);
  Status DrainWorker(std::string_view name);
  Status Migrate(RequestId id, std::string_view worker, Time now);

  // Handles timeouts. Call it at least once per heartbeat interval.
  void Tick(Time now);
  // Forms the steps that can run now. Call it after every other call.
  void Advance(Time now);

  // What was produced since the last call, in order.
  void TakeActions(std::vector<ControllerAction>& actions) { outbox_.Take(actions); }
  void TakeOutputs(std::vector<RequestOutput>& outputs) { lifecycle_.TakeOutputs(outputs); }

  std::optional<Duration> PredictedTtft(int prompt_tokens) const {
    return ForecastTtft(prompt_tokens, pipelines_, requests_, !layout().prefill.empty());
  }
  std::optional<std::string> Missing() const { return lifecycle_.Missing(); }
  ClusterStatus Describe(Time now) const { return view_.Describe(now); }
  sched::SchedulerStats Stats() const { return view_.Stats(); }  // summed over all pipelines
  std::optional<sched::RequestInfo> Inspect(RequestId id, Time now) const {
    return view_.Inspect(id, now);
  }
  std::optional<TimeAccount> Account(RequestId id, Time now) const {  // as of Generator
    return view_.Account(id, now);
  }
  std::vector<sched::RequestInfo> InspectAll(Time now) const { return view_.InspectAll(now); }
  std::optional<StalledRequest> Stalled(Time now) const {  // of any pipeline (watchdog)
    return pipelines_.Stalled(now);
  }
  // Workers that were lost because they stand still, until they join again.
  const std::vector<Membership::Still>& still() const { return members_.still(); }
  ControllerCounters counters() const { return view_.counters(); }
  int64_t epoch() const { return layout().plan.epoch; }                // of the plan in force
  int64_t newest_epoch() const { return deployment_.newest_epoch(); }  // of the newest one begun
  // The last change of plan, if it was given up.
  const std::optional<GivenUpPlan>& given_up() const { return deployment_.given_up(); }
  size_t requests() const { return requests_.size(); }
  // Checks that the tables here agree with each other and with every pipeline's scheduler. Crashes
  // with the reason if they do not.
  void CheckIntegrity() const { view_.CheckIntegrity(); }

 private:
  using Worker = Membership::Worker;

  explicit ControllerCore(ControllerOptions options);

  const Layout& layout() const { return deployment_.layout(); }

  // controller_core.cc
  void Reconcile(Time now);
  Deployment::InUse InUse() const;
  void FollowLayout(const Deployment::Changes& changes, Time now);
  void OpenPipelines(Time now);

  // controller_workers.cc
  void Admit(ConnectionId connection, Join join, Time now);
  void LoseWorker(WorkerId id, const Status& reason, bool disconnect, Time now);
  // It sent what no worker may send: only its session ends, and what it computed is computed again.
  void EndForViolation(ConnectionId from, const std::string& what, Time now);
  bool Is(ConnectionId from, const std::optional<WorkerId>& worker);
  void LoseStillWorker(WorkerId id, const Status& reason, Time now);
  void On(ConnectionId from, const ShardLoaded& message, Time now);
  void On(ConnectionId from, const ShardProgress& message, Time now);
  void On(ConnectionId from, const Leaving& message, Time now);
  void On(ConnectionId from, const Staying& message, Time now);
  void On(ConnectionId from, const Join& message, Time now);

  // controller_pipelines.cc
  void UseOpened();
  void On(ConnectionId from, const PipelineOpened& message, Time now);
  void On(ConnectionId from, const StepDone& message, Time now);
  void On(ConnectionId from, const PipelineBroken& message, Time now);
  void On(ConnectionId from, const PullDone& message, Time now);

  const ControllerOptions options_;
  IdSource ids_;
  Membership members_;
  Outbox outbox_;
  KvMemory memory_{outbox_};
  MachineReports machines_;
  Deployment deployment_;
  Pipelines pipelines_;
  Requests requests_;
  Transfers transfers_;
  ControllerCounters counters_;
  RequestLifecycle lifecycle_;
  PipelineCloser closer_;
  ControllerView view_;
};

}  // namespace millrace::cluster
