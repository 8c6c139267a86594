// WorkerCore: what a worker knows and decides, as a state machine. Messages, rows, ended batches
// and the time go in; actions come out. No thread, socket, clock or model: a worker process and the
// fault lab put the same object between their own.
//
// A worker obeys: the controller owns all accounting. It keeps the weights it was told to load,
// runs the steps of each lane in their order as plan and rows arrive, merges what is ready into one
// batch, forwards a step's plan before computing it (Orca section 4.2) and its rows afterwards.
// What names a lane that is gone is dropped and counted. When the session with the controller ends,
// every lane ends with it; weights stay for the next controller.
//
// One thread at a time; the body holds a lock.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "core/worker_messages.h"
#include "engine/stage.h"

namespace millrace::cluster {

using RowBytes = std::shared_ptr<const std::vector<std::byte>>;

// What the body is to do; those that end with a result are answered by the method named.
struct SendUp {
  ToController message;
};
struct SendToPeer {
  WorkerAddress to;
  PeerMessage message;
};
struct SendRows {  // activations of a step for the next hop
  WorkerAddress to;
  LaneId lane;
  StepId step;
  bool decode = false;  // no prompt among them: may overtake those that have one
  RowBytes rows;
};
struct StartLoad {  // -> LoadEnded
  LoadShard load;
  std::optional<ShardId> same_as;  // a shard with the same weights: only its collective is new
};
struct DropShard {
  ShardId shard;
};
struct AbortGroup {  // the shard's ranks wait for what cannot run here: end their collective
  ShardId shard;
  std::string reason;
};
struct StartLane {  // -> LaneStarted
  ShardId shard;
  LaneId lane;
  engine::StageLane options;
};
struct DropLane {  // also ends what others pull from it and it pulls
  ShardId shard;
  LaneId lane;
};
struct StartPull {  // -> PullEnded
  ShardId shard;
  LayerRange layers;  // the lane's, here
  PullKv pull;
};
struct Expose {
  ShardId shard;
  LayerRange layers;
  ExposeKv kv;
};
struct Unexpose {
  KvHandle handle;
};
struct EndSession {  // and try again, unless `for_good`
  std::string reason;
  bool for_good = false;
};
using WorkerAction = std::variant<SendUp, SendToPeer, SendRows, StartLoad, DropShard, AbortGroup,
                                  StartLane, DropLane, StartPull, Expose, Unexpose, EndSession>;

struct WorkerCoreOptions {
  static constexpr size_t kShardsMax = 16;
  static constexpr size_t kLanesMax = 4096;
  static constexpr size_t kStepsWaitingMax = 64;  // of one lane: far more than it has hops

  Join join;  // as sent at the start of every session; `held` is filled in
};

struct WorkerCounters {
  uint64_t batches = 0, parts = 0;
  uint64_t stale_steps = 0, stale_rows = 0, stale_orders = 0;  // of lanes that are gone
  uint64_t refused = 0;                                        // messages that broke a rule
};

// Steps that have all they need, of one shard.
struct ReadyBatch {
  struct Part {
    LaneId lane;
    std::shared_ptr<const StepPlan> plan;
    RowBytes input;  // null at a lane's first hop
  };
  ShardId shard;
  std::vector<Part> parts;
};
struct PartOutput {
  std::vector<std::byte> rows;
  StepResult result;
};

class WorkerCore {
 public:
  explicit WorkerCore(WorkerCoreOptions options);

  // The session with a controller: up (says Join), down (every lane ends).
  void SessionUp(Time now);
  void SessionDown(Time now);
  void FromController(ToWorker message, Time now);
  void FromPeer(PeerMessage message, Time now);
  void RowsArrived(LaneId lane, StepId step, RowBytes rows);
  // The connection to a peer is gone: lanes that need it are broken.
  void PeerLost(Incarnation peer, const Status& reason);

  // Who it is to the next controller: one of another model must not take its shards for its own.
  void Identify(WorkerIdentity identity) { options_.join.identity = std::move(identity); }
  void LoadEnded(const ShardLoaded& loaded);
  void LoadProgress(const ShardProgress& progress);
  void LaneStarted(LaneId lane, const Status& status);
  void PullEnded(const PullDone& done);

  // What can run now, or nothing. One batch at a time.
  std::optional<ReadyBatch> NextBatch(Time now);
  // `outputs` by part. A failed part breaks its lane, a failed batch those of all its parts.
  void BatchEnded(const Status& status, std::vector<PartOutput> outputs, Time now);

  // A notice that this machine is about to go.
  void AnnounceLeaving(std::optional<Duration> in);
  Heartbeat MakeHeartbeat(Time now);

  // Actions since the last call, in order.
  void TakeActions(std::vector<WorkerAction>& actions);

  bool welcomed() const { return worker_.has_value(); }
  std::optional<WorkerId> worker() const { return worker_; }
  size_t lanes() const { return lanes_.size(); }
  size_t shards() const { return shards_.size(); }
  size_t orphans() const;
  bool wants(ShardId shard) const;  // that is being loaded; not if its ranks belong to the past
  bool batch_running() const { return running_.has_value(); }
  const WorkerCounters& counters() const { return counters_; }
  Duration heartbeat_every() const { return heartbeat_every_; }

 private:
  struct Shard {
    LoadShard load;
    bool loaded = false;
    bool orphan = false;             // of an earlier session: weights that may be wanted again
    std::optional<ShardId> same_as;  // while it loads from there
    std::deque<BatchOrder> orders;   // of rank 0, where this is another rank
    uint64_t turn = 0;               // when it last ran
  };
  struct Lane {
    OpenLane open;
    ShardId shard;
    bool started = false;
    bool broken = false;  // said so already
    bool failed = false;  // by what came or ran here, not by the loss of a peer
    std::deque<std::shared_ptr<const StepPlan>> steps;
    std::optional<StepId> newest;  // step that has arrived
    std::optional<StepId> taken;   // step that runs or has run
    std::map<StepId, RowBytes> inputs;
    std::unordered_set<SequenceId> known;  // to the stage, once the steps waiting have run
    uint64_t turn = 0;

    const LaneHop& hop() const { return open.hops[static_cast<size_t>(open.hop)]; }
    bool first() const { return open.hop == 0; }
    bool last() const { return open.hop + 1 == static_cast<int>(open.hops.size()); }
  };

  void On(const Welcome& message, Time now);
  void On(const Refused& message, Time now);
  void On(LoadShard& message, Time now);
  void On(const UnloadShard& message, Time now);
  void On(OpenLane& message, Time now);
  void On(const CloseLane& message, Time now);
  void On(LaneStep& message, Time now);
  void On(BatchOrder& message, Time now);
  void On(const ExposeKv& message, Time now);
  void On(const ReleaseKv& message, Time now);
  void On(PullKv& message, Time now);
  void On(const Leave& message, Time now);

  Status CheckOpen(const OpenLane& message) const;
  Status CheckStep(Lane& lane, const StepPlan& plan);
  void Forward(const Lane& lane, const LaneStep& step);
  void Break(LaneId id, Lane& lane, const Status& reason, std::optional<WorkerId> suspect);
  void EraseLane(LaneId id);
  void DropOrphans();
  bool HasNext(const Lane& lane) const;
  void FillByArrival(ShardId id, const Shard& shard, ReadyBatch& batch);
  bool FillByOrder(ShardId id, Shard& shard, ReadyBatch& batch);
  void Take(LaneId id, Lane& lane, ReadyBatch& batch);
  void SendOutput(const Lane& lane, const ReadyBatch::Part& part, PartOutput& output);
  void Emit(WorkerAction action) { actions_.push_back(std::move(action)); }

  WorkerCoreOptions options_;
  std::optional<WorkerId> worker_;  // while a controller has welcomed us
  Term term_;                       // the highest seen
  Duration heartbeat_every_ = Duration::Seconds(0.25);
  std::map<ShardId, Shard> shards_;
  std::map<LaneId, Lane> lanes_;
  std::unordered_map<TransferId, LaneId> pulls_;
  std::optional<ReadyBatch> running_;
  Time running_since_;
  uint64_t turns_ = 0;
  uint64_t heartbeats_ = 0;
  std::vector<WorkerAction> actions_;
  WorkerCounters counters_;
};

}  // namespace millrace::cluster
