// ControllerCore: the brain of a cluster, as a state machine (Orca section 4.2's control plane;
// Helix section 5; DistServe section 4.3; SpotServe section 4). Requests, workers' messages,
// heartbeats and the time go in; messages to workers and output for clients come out. No thread,
// socket, clock or random device: the server's controller and the fault lab run the very same
// object.
//
// What it keeps true:
//  - Workers are given layers by a layout (a plan's stages); whoever leaves is replaced by whoever
//    is free, or the layers are laid out anew over those who are left.
//  - Requests that go the same way share a pipeline: one production scheduler, one block table per
//    request for all hops. A pipeline is opened once and never repaired. When any worker of it is
//    lost its requests are taken out with the tokens they have and go on elsewhere: a token that
//    was told is never told again, and what comes late names a pipeline that is gone.
//  - A lost pipeline's other workers keep their KV until its requests have fetched it: only the
//  lost
//    layers are computed again.
//  - A request moves between pipelines with its KV (hand-over from prefill to decode, migration, a
//  new
//    plan) or, should that fail, without: then it is computed again from its tokens.
//
// Files: controller_core.cc (operators, time), controller_workers.cc (who is there),
// controller_layout.cc (who holds what), controller_retire.cc (orderly ends: drained
// workers, pipelines of earlier plans, plans that cannot be loaded), controller_pipelines.cc
// (steps), controller_requests.cc (who waits), controller_routes.cc (routes of plans that branch),
// controller_moves.cc (KV between pipelines), controller_leases.cc (how long it is kept for them),
// controller_recoverable_kv.cc (KV of pipelines that are lost), controller_status.cc (what is told
// of it).
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/connection_id.h"
#include "cluster/controller_status.h"
#include "cluster/kv_under_way.h"
#include "cluster/layout.h"
#include "cluster/pipeline_turns.h"
#include "cluster/router.h"
#include "core/output.h"
#include "core/worker_messages.h"
#include "sched/prefill_meter.h"
#include "sched/scheduler.h"

namespace millrace::cluster {

struct SendToWorker {
  ConnectionId to;
  ToWorker message;
};
struct Disconnect {
  ConnectionId connection;
  std::string reason;
};
using ControllerAction = std::variant<SendToWorker, Disconnect>;

struct ControllerOptions {
  static constexpr size_t kWorkersMax = 1024;
  static constexpr size_t kWeightSourcesMax = 16;  // named for one shard
  static constexpr size_t kMovesMax = 16;  // requests that change pipelines with their KV at once
  // A worker whose last heartbeat is less than so many intervals old counts as alive.
  static constexpr int64_t kAliveBeats = 3;
  // A change of plan is given up when the ranks of a stage have failed to meet so many times.
  static constexpr int kMeetingsMax = 3;

  Term term;
  std::string model;  // its name
  int num_layers = 0;
  WorkerIdentity identity;            // the fingerprint workers must have; empty fields: any
  sched::SchedulerOptions scheduler;  // of every pipeline; stages follow from the layout, and so do
                                      // the blocks; `num_blocks`: this many at most, 0: what fits
  std::function<void(std::string_view)> step_log;  // every line of every pipeline's; empty: none
  RouterOptions router;
  int stages = 1;            // of an automatic layout; fewer when workers are
  int tensor_parallel = 1;   // of an automatic layout
  bool elastic = true;       // an automatic layout follows the number of workers
  std::optional<Plan> plan;  // instead of an automatic layout
  std::vector<std::string> node_names;

  Duration heartbeat_every = Duration::Seconds(0.25);
  Duration silent_limit = Duration::Seconds(3);  // no heartbeat: hung or cut off
  Duration stuck_limit = Duration::Seconds(3);   // a batch that runs longer, and ...
  double stuck_factor = 8;                       // ... so many times the longest before it
  Duration first_batch_limit = Duration::Seconds(60);
  Duration replace_limit = Duration::Seconds(2);   // before layers are laid out anew
  Duration waiting_limit = Duration::Seconds(60);  // for layers that are on no worker
  int waiting_max = 4096;                          // requests that may wait for a pipeline
  int deaths_max = 2;  // pipelines lost under a request without a token in between: it is poison
  Duration hold_limit = Duration::Seconds(30);  // KV kept for a puller that is not heard
  uint64_t secret = 0;                          // random: nonces of KV handles
};

class ControllerCore {
 public:
  // kInvalidArgument when options or plan contradict each other.
  static Result<std::unique_ptr<ControllerCore>> Create(ControllerOptions options, Time now);
  ~ControllerCore();

  // A request, fresh or (after a restart) with `resumed`. Its id is unique for ever.
  // kInvalidArgument: can never fit. kResourceExhausted: too many wait.
  Status Submit(sched::NewRequest request, Time now);
  // Ends the request or its sequence `index`; unknown ones are ignored.
  void Abort(RequestId id, std::optional<int> index, Time now);

  void Receive(ConnectionId from, ToController message, Time now);
  void Beat(ConnectionId from, const Heartbeat& beat, Time now);
  void ConnectionLost(ConnectionId connection, const Status& reason, Time now);

  // Operators. kNotFound, kInvalidArgument, kFailedPrecondition: one line why not.
  Status ApplyPlan(Plan plan, std::vector<std::string> node_names, Time now);
  Status DrainWorker(std::string_view name, Time now);
  Status Migrate(RequestId id, std::string_view worker, Time now);

  // What only time brings; to be called every heartbeat or oftener.
  void Tick(Time now);
  // Forms the steps that can run now. To be called after every other call.
  void Advance(Time now);

  // Since the last call, in order.
  void TakeActions(std::vector<ControllerAction>& actions);
  void TakeOutputs(std::vector<RequestOutput>& outputs);

  std::optional<std::string> Missing() const;
  ClusterStatus Describe(Time now) const;
  sched::SchedulerStats Stats() const;  // summed over pipelines
  std::optional<sched::RequestInfo> Inspect(RequestId id, Time now) const;
  std::vector<sched::RequestInfo> InspectAll(Time now) const;
  std::optional<sched::RequestInfo> Stalled(Time now) const;  // of any pipeline (watchdog)
  const ControllerCounters& counters() const { return counters_; }
  // Of the plan in force, of the newest that was begun, and of the last change where it was given
  // up.
  int64_t epoch() const { return layout_.plan.epoch; }
  int64_t newest_epoch() const { return epoch_; }
  const std::optional<GivenUpPlan>& given_up() const { return given_up_; }
  size_t requests() const { return requests_.size(); }
  // Every pipeline's scheduler and every table here agree; crashes with the reason when not.
  void CheckIntegrity() const;

 private:
  struct Worker {
    WorkerId id;
    ConnectionId connection;
    Join join;
    WorkerAddress address;  // with the id
    Time last_beat;
    Heartbeat beat;
    int64_t longest_batch_ms = 0;
    bool draining = false;
    bool leaving = false;  // it has announced that it leaves
    std::string unusable;  // why it gets no layers; empty: it does
  };
  struct Pipeline {
    PipelineId id;
    Route route;  // by the layout's stages
    StageRole role = StageRole::kBoth;
    std::vector<PipelineHop> hops;
    std::vector<std::vector<WorkerId>> workers;  // by hop and rank
    std::unique_ptr<sched::Scheduler> scheduler;
    std::optional<sched::PrefillMeter> prefill;  // where swap and recompute are weighed
    int num_blocks = 0;
    std::set<WorkerId> to_open;  // who has not said yes
    bool open = false;
    bool retiring = false;  // of an earlier plan: takes no more requests
    std::set<RequestId> requests;
    bool Uses(WorkerId worker) const;
  };
  struct Tracked {
    // What every token touches lies together: with 10,000 requests none of it is in the cache.
    std::optional<PipelineId> pipeline;  // whose scheduler has it
    int64_t delivered = 0;               // tokens
    int64_t delivered_at_death = -1;
    int deaths = 0;
    std::optional<WorkerId> suspect;  // said to be gone by a peer while the request ran with it
    Time arrived, waits_since;
    sched::NewRequest spec;  // as the client sent it; a prefill pipeline has other parameters
    std::optional<sched::NewRequest> waiting;  // or what a pipeline will be given
    std::optional<Route> route;                // by the router
    std::optional<RecoverableKv> left;

    int n() const { return spec.params->n; }
    int prompt_tokens() const { return static_cast<int>(spec.prompt->size()); }
  };
  using WaitingKey = std::pair<Time, RequestId>;

  ControllerCore(ControllerOptions options, Layout layout);

  // controller_workers.cc
  void Admit(ConnectionId connection, Join join, Time now);
  Status CheckJoin(const Join& join) const;
  void LoseWorker(WorkerId id, const Status& reason, bool disconnect, Time now);
  void UnassignSlots(Layout& layout, WorkerId worker);
  void WatchHeartbeats(Time now);
  bool Heard(const Worker& worker, Time now) const;
  Worker* ByConnection(ConnectionId connection);
  Worker* ByName(std::string_view name);
  void Send(WorkerId worker, ToWorker message);
  int UsableWorkers() const;

  // controller_layout.cc
  void AssignWorkers(Time now);
  void AssignLayout(Layout& layout, const Layout* other);
  std::optional<WorkerId> ChooseWorker(const Layout& layout, const Layout* other,
                                       const LayoutStage& stage, int rank) const;
  std::vector<WorkerAddress> WeightSources(WorkerId of, LayerRange layers) const;
  void AskToLoad(LayoutStage& stage);
  static bool HasSlot(const Layout& layout, WorkerId worker);
  void On(ConnectionId from, const ShardLoaded& message, Time now);
  void On(ConnectionId from, const ShardProgress& message, Time now);
  Slot* FindSlot(ShardId shard);
  static LayoutStage* FindStage(Layout& layout, ShardId of_rank);
  void LoadFailed(Worker& worker, const ShardLoaded& message, Time now);
  bool MeetAgain(const ShardLoaded& message, Time now);
  void FollowWorkers(Time now);
  Status Prepare(Layout layout, Time now);
  void MaybeSwitch(Time now);
  void DropUnusedShards();

  // controller_retire.cc
  Status Relieve(const Worker& worker, Time now);
  bool CloseStagesOf(WorkerId worker, Time now);
  void EmptyClosedStages();
  void GiveUpNext(const std::string& reason, Time now);
  void RetirePipelines(Time now);
  void TakeOut(Pipeline& pipeline, RequestId id, Time now);
  void LetIdleWorkersGo();

  // controller_pipelines.cc
  Pipeline* PipelineFor(const Route& route, StageRole role, Time now);
  std::vector<int> KeepRowsAt(LayerRange hop, StageRole role) const;
  Pipeline* OpenPipeline(const Route& route, StageRole role, Time now);
  void OpenPipelines(Time now);
  int BlocksFor(const Route& route) const;
  void On(ConnectionId from, const PipelineOpened& message, Time now);
  void On(ConnectionId from, const StepDone& message, Time now);
  void On(ConnectionId from, const PipelineBroken& message, Time now);
  // Why a pipeline is lost: its stages are healthy (kInnocent), a worker of it is gone (kDeath:
  // what ran there may be the cause), or a peer says that one is.
  enum class PipelineEnd : uint8_t { kInnocent, kDeath, kSuspicion };
  // `failed`: the hop whose ranks cannot go on.
  void LosePipeline(PipelineId id, const Status& reason, PipelineEnd end,
                    std::optional<WorkerId> suspect, Time now, const PipelineHop* failed = nullptr);
  void CountDeath(Tracked& tracked);
  bool EndPoison(RequestId id, const Tracked& tracked, const Status& reason, Time now);
  void BlameFor(WorkerId lost, const Status& reason, Time now);
  bool ResetGroup(ShardId of_rank);
  void RemakeCollective(const PipelineHop& hop, const Status& reason, Time now);
  void ClosePipeline(PipelineId id);
  void Pump(Pipeline& pipeline, Time now);
  Pipeline* Find(PipelineId id);

  // controller_requests.cc
  // kNotYet: the request waits for an event of its own; requests behind it need not wait.
  enum class Placed : uint8_t { kYes, kNotNow, kNotYet, kNever };
  void Dispatch(Time now);
  Phase PhaseOf(const Tracked& tracked) const;
  Placed Place(RequestId id, Tracked& tracked, Time now);
  Pipeline* ChoosePipeline(RequestId id, Tracked& tracked, Time now);
  Status AddTo(Pipeline& pipeline, RequestId id, Tracked& tracked, Time now);
  std::vector<int> ToFetch(RequestId id, Tracked& tracked, const Pipeline& pipeline);
  void Wait(RequestId id, Tracked& tracked, sched::NewRequest request, Time now);
  void EndWaiting(RequestId id, FinishReason reason, const Status& error, std::optional<int> index,
                  Time now);
  void ExpireWaiting(Time now);
  void FilterOutputs(Pipeline& pipeline, size_t first, Time now);
  void Forget(RequestId id, Time now);
  int64_t OutputLimit(const Tracked& tracked) const;

  // controller_routes.cc
  Result<Router> NewRouter(const Plan& plan) const;
  void MakeRouter(Time now);
  void TellRouter(Time now);
  Status SubmitToRouter(RequestId id, Tracked& tracked, Time now);
  void RerouteWaiting(Time now);
  void FollowRouter(Time now);

  // controller_moves.cc
  void HandOver(Pipeline& from, RequestId id, RequestOutput& last, Time now);
  Status StartMove(RequestId id, Pipeline& from, Pipeline& to, Time now);
  void StartPulls(Pipeline& pipeline, Time now);
  bool IsLeaving(const Pipeline& pipeline) const;
  PulledActivations ActivationsFrom(const Pipeline* pipeline) const;
  bool StartPull(Pipeline& pipeline, Move& move, const Pipeline& from, const sched::KvPull& pull,
                 Time now);
  void On(ConnectionId from, const PullDone& message, Time now);
  void PullEnded(const PullJob& job, Time now);
  void ContinueMove(RequestId id, Time now);
  void FinishPause(RequestId id, Time now);
  void EndMove(RequestId id, bool complete, Time now);
  void AbandonMove(RequestId id, Time now);
  void EndMovesOf(PipelineId id, Time now);
  void ReleaseSource(const Move& move, RequestId id);
  void CloseSource(const Move& move, const Pipeline& from);
  void ContinuePauses(Time now);
  KvHandle NewHandle(PipelineId pipeline);
  bool SourceStillHolds(RequestId id, const Move& move, Time now) const;
  int WholeBlocks(int tokens) const;

  // controller_leases.cc
  void RenewLeases(Time now);
  bool PullerAlive(PipelineId to, Time now) const;
  void RenewMove(RequestId id, Move& move, Time now);
  void RenewLeft(RequestId id, Tracked& tracked, Time now);
  void RenewFetch(PullJob& job, Time now);
  void ExportAgain(PipelineId pipeline, const ExportKv& exported);
  bool RenewalDue(Time& renew_at, Time now) const;

  // controller_recoverable_kv.cc
  const std::vector<PipelineHop>* HopsOf(PipelineId id);
  bool StillThere(const PipelineHop& hop) const;
  bool HasSurvivingStages(WorkerId worker) const;
  void RetainSurvivingStages(Pipeline& pipeline, const PipelineHop* failed,
                             std::optional<WorkerId> suspect, Time now);
  // `held`: by its scheduler, where the pipeline goes on.
  void LeaveBehind(RequestId id, PipelineId pipeline, sched::DetachedRequest here,
                   std::vector<BlockIndex> held);
  void LeaveAtSource(RequestId id, const Move& move, Pipeline& from);
  void DropLeft(RequestId id, Tracked& tracked);
  void DropWaiters(PipelineId pipeline);
  void CloseSurvivingStages(PipelineId id, const SurvivingStages& surviving_stages);
  void ExpireSurvivingStages(Time now);
  std::vector<PipelineHop> HoldersOf(LayerRange layers, PipelineId in);
  bool StillLeft(RequestId id, const RecoverableKv& left);
  bool CanFetch(RequestId id, const Tracked& tracked, const Pipeline& pipeline);
  bool StartFetch(Pipeline& pipeline, const sched::KvPull& pull, bool doubtful = false);
  bool FetchTail(Pipeline& to, const PullJob& job, Time now);
  void FetchFrom(const PipelineHop& holder, const Pipeline& pipeline, size_t hop,
                 const sched::KvPull& pull, uint64_t job_id, PullJob& job);
  static void NoteFetched(PullJob& job, const PullDone& done);
  void CloseFetch(const PullJob& job);
  void FetchFailed(Pipeline& pipeline, RequestId id, Time now);
  void FetchEnded(const PullJob& job, Time now);

  void On(ConnectionId from, const Leaving& message, Time now);
  void On(ConnectionId from, const Join& message, Time now);
  uint64_t NextId() { return (options_.term.value() << 40) | ++next_id_; }

  const ControllerOptions options_;
  Layout layout_;
  std::optional<Layout> next_;           // being loaded; takes over when it is up
  std::optional<Router> router_;         // of layout_, where requests are routed one by one
  std::optional<Time> mismatch_since_;   // the number of workers asks for another layout
  int unlike_usable_ = 0;                // and has been this since then
  bool follows_ = true;                  // false: that layout was given up with the present workers
  std::optional<GivenUpPlan> given_up_;  // the last change, if it was
  int64_t epoch_ = 0;

  std::map<WorkerId, Worker> workers_;
  std::map<ConnectionId, WorkerId> connections_;
  std::map<ShardId, WorkerId> shards_;  // asked for or loaded
  std::map<PipelineId, Pipeline> pipelines_;
  std::map<PipelineId, SurvivingStages> surviving_stages_;
  std::map<PipelineId, std::set<RequestId>>
      waiters_;                     // of pipelines, lost or not: who left KV there
  std::set<PipelineId> dirty_;      // something changed since their last step was formed
  PipelineTurns turns_;             // of pipelines that may not run beside each other
  std::set<PipelineId> ask_again_;  // of these: whose turn it may be now
  std::unordered_map<RequestId, Tracked> requests_;
  std::set<WaitingKey> waiting_;
  bool try_waiting_ = false;  // something changed since they were last tried
  std::map<std::string, std::pair<Time, Duration>> pipeline_retry_;  // by way: not before, back-off

  std::map<RequestId, Move> moves_;
  std::map<uint64_t, PullJob> pull_jobs_;
  std::unordered_map<TransferId, uint64_t> transfers_;
  uint64_t next_id_ = 0;

  std::vector<ControllerAction> actions_;
  std::vector<RequestOutput> outputs_;
  std::vector<sched::KvPull> pulls_;
  std::vector<sched::PreemptionRecord> preemptions_;
  sched::SchedulerStats closed_pipelines_;  // counters of pipelines that are gone
  ControllerCounters counters_;
};

}  // namespace millrace::cluster
