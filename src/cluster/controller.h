// Controller: the brain of a cluster, as a state machine (Orca section 4.2's control plane; Helix
// section 5; DistServe section 4.3; SpotServe section 4). Requests, workers' messages, heartbeats
// and the time go in; messages to workers and news for clients come out. No thread, socket, clock
// or random device: the server's controller and the fault lab run the very same object.
//
// What it keeps true:
//  - Workers are given layers by a layout (a plan's stages); whoever leaves is replaced by whoever
//    is free, or the layers are laid out anew over those who are left.
//  - Requests that go the same way share a lane: one production scheduler, one block table per
//    request for all hops. A lane is opened once and never repaired. When any worker of it is lost
//    its requests are taken out with the tokens they have and go on elsewhere: a token that was
//    told is never told again, and what comes late names a lane that is gone.
//  - A lost lane's other workers keep their KV until its requests have fetched it: only the lost
//    layers are computed again.
//  - A request moves between lanes with its KV (hand-over from prefill to decode, migration, a new
//    plan) or, should that fail, without: then it is computed again from its tokens.
//
// Files: controller.cc (operators, time), controller_workers.cc (who is there),
// controller_layout.cc (who holds what), controller_lanes.cc (steps), controller_requests.cc (who
// waits), controller_moves.cc (KV between lanes),
// controller_left_kv.cc (KV of lanes that are lost), controller_status.cc (what is told of it).
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
#include "cluster/kv_under_way.h"
#include "cluster/lane_turns.h"
#include "cluster/layout.h"
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
  static constexpr size_t kMovesMax = 16;  // requests that change lanes with their KV at once

  Term term;
  std::string model;  // its name
  int num_layers = 0;
  WorkerIdentity identity;            // the fingerprint workers must have; empty fields: any
  sched::SchedulerOptions scheduler;  // of every lane; stages follow from the layout, and so do
                                      // the blocks; `num_blocks`: this many at most, 0: what fits
  std::function<void(std::string_view)> step_log;  // every line of every lane's; empty: none
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
  int waiting_max = 4096;                          // requests that may wait for a lane
  int deaths_max = 2;  // lanes lost under a request without a token in between: it is poison
  Duration hold_limit = Duration::Seconds(30);  // KV kept for a move
  uint64_t secret = 0;                          // random: nonces of KV handles
};

// For people and for tests.
struct WorkerStatus {
  WorkerId id;
  std::string name, device, control, note;
  bool draining = false;
  std::vector<LayerRange> layers;  // loaded
  int rank = 0, ranks = 1;
  int64_t memory_bytes = 0, weight_bytes = 0, kv_bytes = 0;
  uint64_t batches = 0;
  Duration silent;
};
struct LaneStatus {
  LaneId id;
  std::vector<std::string> workers;  // rank 0 of each hop
  std::vector<LayerRange> layers;
  StageRole role = StageRole::kBoth;
  bool open = false, retiring = false;
  int64_t requests = 0;
  int blocks_total = 0, blocks_used = 0;
};
struct ControllerCounters {
  uint64_t joins = 0, joins_refused = 0, workers_lost = 0;
  uint64_t lanes_opened = 0, lanes_lost = 0, layouts = 0;
  uint64_t replays = 0, poisoned = 0, expired = 0;
  uint64_t moves = 0, moves_failed = 0, moved_bytes = 0;
  uint64_t fetched = 0;           // of the replays, with KV that was left
  uint64_t computed_in_part = 0;  // of these, by less than all layers
  uint64_t stale_messages = 0;    // of lanes, shards and transfers that are gone
};
struct ClusterStatus {
  Term term;
  int64_t epoch = 0;
  Plan plan;
  std::optional<std::string> missing;
  bool changing = false;  // to another plan
  std::vector<WorkerStatus> workers;
  std::vector<LaneStatus> lanes;
  int64_t requests = 0, waiting = 0, moving = 0;
  ControllerCounters counters;
};

class Controller {
 public:
  // kInvalidArgument when options or plan contradict each other.
  static Result<std::unique_ptr<Controller>> Create(ControllerOptions options, Time now);
  ~Controller();

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
  sched::SchedulerStats Stats() const;  // summed over lanes
  std::optional<sched::RequestInfo> Inspect(RequestId id, Time now) const;
  std::vector<sched::RequestInfo> InspectAll(Time now) const;
  std::optional<sched::RequestInfo> Stalled(Time now) const;  // of any lane (watchdog)
  const ControllerCounters& counters() const { return counters_; }
  size_t requests() const { return requests_.size(); }
  // Every lane's scheduler and every table here agree; crashes with the reason when not.
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
    std::string unusable;  // why it gets no layers; empty: it does
  };
  struct Lane {
    LaneId id;
    Route route;  // by the layout's stages
    StageRole role = StageRole::kBoth;
    std::vector<LaneHop> hops;
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
    std::optional<LaneId> lane;  // whose scheduler has it
    int64_t told = 0;            // tokens
    int64_t told_at_death = -1;
    int deaths = 0;
    std::optional<WorkerId> suspect;  // said to be gone by a peer while the request ran with it
    Time arrived, waits_since;
    sched::NewRequest spec;  // as the client sent it; a prefill lane has other parameters
    std::optional<sched::NewRequest> waiting;  // or what a lane will be given
    std::optional<Route> route;                // by the router
    std::optional<LeftKv> left;

    int n() const { return spec.params->n; }
    int prompt_tokens() const { return static_cast<int>(spec.prompt->size()); }
  };
  using WaitingKey = std::pair<Time, RequestId>;

  Controller(ControllerOptions options, Layout layout);

  // controller_workers.cc
  void Admit(ConnectionId connection, Join join, Time now);
  Status CheckJoin(const Join& join) const;
  void LoseWorker(WorkerId id, const Status& reason, bool disconnect, Time now);
  void VacateSlots(Layout& layout, WorkerId worker);
  void WatchHeartbeats(Time now);
  Worker* ByConnection(ConnectionId connection);
  Worker* ByName(std::string_view name);
  void Send(WorkerId worker, ToWorker message);
  int UsableWorkers() const;

  // controller_layout.cc
  void Staff(Time now);
  void StaffLayout(Layout& layout, const Layout* other);
  std::optional<WorkerId> PickWorker(const Layout& layout, const Layout* other,
                                     const LayoutStage& stage, int rank) const;
  std::vector<WorkerAddress> WeightSources(WorkerId of, LayerRange layers) const;
  void AskToLoad(LayoutStage& stage);
  bool HasSlot(const Layout& layout, WorkerId worker) const;
  void On(ConnectionId from, const ShardLoaded& message, Time now);
  void On(ConnectionId from, const ShardProgress& message, Time now);
  Slot* FindSlot(ShardId shard);
  void FollowWorkers(Time now);
  Status Prepare(Layout layout, Time now);
  void MaybeSwitch(Time now);
  void DropUnusedShards();
  void MakeRouter(Time now);

  // controller_lanes.cc
  Lane* LaneFor(const Route& route, StageRole role, Time now);
  std::vector<int> KeepRowsAt(LayerRange hop, StageRole role) const;
  Lane* OpenLane(const Route& route, StageRole role, Time now);
  void OpenWays(Time now);
  int BlocksFor(const Route& route) const;
  void On(ConnectionId from, const LaneOpened& message, Time now);
  void On(ConnectionId from, const StepDone& message, Time now);
  void On(ConnectionId from, const LaneBroken& message, Time now);
  // Why a lane is lost: its stages are healthy (kInnocent), a worker of it is gone (kDeath: what
  // ran there may be the cause), or a peer says that one is.
  enum class LaneEnd : uint8_t { kInnocent, kDeath, kSuspicion };
  // `failed`: the hop whose ranks cannot go on.
  void LoseLane(LaneId id, const Status& reason, LaneEnd end, std::optional<WorkerId> suspect,
                Time now, const LaneHop* failed = nullptr);
  void CountDeath(Tracked& tracked);
  bool EndPoison(RequestId id, const Tracked& tracked, const Status& reason, Time now);
  void BlameFor(WorkerId lost, const Status& reason, Time now);
  bool MakeGroupAnew(ShardId of_rank);
  void RemakeCollective(const LaneHop& hop, const Status& reason, Time now);
  void CloseLane(LaneId id);
  void Pump(Lane& lane, Time now);
  void RetireLanes(Time now);
  Lane* Find(LaneId id);

  // controller_requests.cc
  enum class Placed : uint8_t { kYes, kNotNow, kNever };
  void Dispatch(Time now);
  Placed Place(RequestId id, Tracked& tracked, Time now);
  Lane* ChooseLane(RequestId id, Tracked& tracked, Time now);
  Status AddTo(Lane& lane, RequestId id, Tracked& tracked, Time now);
  std::vector<int> ToFetch(RequestId id, Tracked& tracked, const Lane& lane);
  void Wait(RequestId id, Tracked& tracked, sched::NewRequest request, Time now);
  void EndWaiting(RequestId id, FinishReason reason, const Status& error, std::optional<int> index,
                  Time now);
  void ExpireWaiting(Time now);
  void FilterNews(Lane& lane, size_t first, Time now);
  void Forget(RequestId id, Time now);
  void FollowRouter(Time now);
  Status SubmitToRouter(RequestId id, Tracked& tracked, Time now);

  // controller_moves.cc
  void HandOver(Lane& from, RequestId id, RequestOutput& last, Time now);
  Status StartMove(RequestId id, Lane& from, Lane& to, Time now);
  void StartPulls(Lane& lane, Time now);
  bool IsLeaving(const Lane& lane) const;
  PulledRows RowsFrom(const Lane* lane) const;
  bool StartPull(Lane& lane, Move& move, const Lane& from, const sched::KvPull& pull, Time now);
  void On(ConnectionId from, const PullDone& message, Time now);
  void PullEnded(const PullJob& job, Time now);
  void ContinueMove(RequestId id, Time now);
  void FinishFreeze(RequestId id, Time now);
  void EndMove(RequestId id, bool complete, Time now);
  void AbandonMove(RequestId id, Time now);
  void EndMovesOf(LaneId id, Time now);
  void ReleaseSource(const Move& move, RequestId id);
  void CloseSource(const Move& move, const Lane& from);
  void ContinueFreezes(Time now);
  KvHandle NewHandle(LaneId lane);
  bool SourceStillHolds(RequestId id, const Move& move, Time now) const;
  int WholeBlocks(int tokens) const;

  // controller_left_kv.cc
  const std::vector<LaneHop>* HopsOf(LaneId id);
  bool StillThere(const LaneHop& hop) const;
  bool HasRemains(WorkerId worker) const;
  void KeepRemains(Lane& lane, const LaneHop* failed, std::optional<WorkerId> suspect, Time now);
  // `held`: by its scheduler, where the lane goes on.
  void LeaveBehind(RequestId id, LaneId lane, sched::DetachedRequest here,
                   std::vector<BlockIndex> held);
  void LeaveAtSource(RequestId id, const Move& move, Lane& from);
  void DropLeft(RequestId id, Tracked& tracked);
  void DropHeirs(LaneId lane);
  void CloseRemains(LaneId id, const Remains& remains);
  void ExpireRemains(Time now);
  std::vector<LaneHop> HoldersOf(LayerRange layers, LaneId in);
  bool StillLeft(RequestId id, const LeftKv& left);
  bool CanFetch(RequestId id, const Tracked& tracked, const Lane& lane);
  bool StartFetch(Lane& lane, const sched::KvPull& pull, bool doubtful = false);
  bool FetchTail(Lane& to, const PullJob& job, Time now);
  void FetchFrom(const LaneHop& holder, const Lane& lane, size_t hop, const sched::KvPull& pull,
                 uint64_t job_id, PullJob& job);
  static void NoteFetched(PullJob& job, const PullDone& done);
  void CloseFetch(const PullJob& job);
  void FetchFailed(Lane& lane, RequestId id, Time now);
  void FetchEnded(const PullJob& job, Time now);

  void On(ConnectionId from, const Leaving& message, Time now);
  void On(ConnectionId from, const Join& message, Time now);
  uint64_t NextId() { return (options_.term.value() << 40) | ++next_id_; }

  const ControllerOptions options_;
  Layout layout_;
  std::optional<Layout> next_;        // being loaded; takes over when it is up
  std::optional<Router> router_;      // of layout_, where requests are routed one by one
  std::optional<Time> unlike_since_;  // the number of workers asks for another layout
  int unlike_usable_ = 0;             // and has been this since then
  int64_t epoch_ = 0;

  std::map<WorkerId, Worker> workers_;
  std::map<ConnectionId, WorkerId> connections_;
  std::map<ShardId, WorkerId> shards_;  // asked for or loaded
  std::map<LaneId, Lane> lanes_;
  std::map<LaneId, Remains> remains_;
  std::map<LaneId, std::set<RequestId>> heirs_;  // of lanes, lost or not: who left KV there
  std::set<LaneId> dirty_;      // something changed since their last step was formed
  LaneTurns turns_;             // of lanes that may not run beside each other
  std::set<LaneId> ask_again_;  // of these: whose turn it may be now
  std::unordered_map<RequestId, Tracked> requests_;
  std::set<WaitingKey> waiting_;
  bool try_waiting_ = false;  // something changed since they were last tried
  std::map<std::string, std::pair<Time, Duration>> lane_retry_;  // by way: not before, back-off

  std::map<RequestId, Move> moves_;
  std::map<uint64_t, PullJob> pull_jobs_;
  std::unordered_map<TransferId, uint64_t> transfers_;
  uint64_t next_id_ = 0;

  std::vector<ControllerAction> actions_;
  std::vector<RequestOutput> outputs_;
  std::vector<sched::KvPull> pulls_;
  std::vector<sched::PreemptionRecord> preemptions_;
  sched::SchedulerStats closed_lanes_;  // counters of lanes that are gone
  ControllerCounters counters_;
};

}  // namespace millrace::cluster
