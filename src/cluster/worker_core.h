// WorkerCore: what a worker knows and decides, as a state machine. Messages, activations, ended
// batches and the time go in; actions come out. No thread, socket, clock or model: a worker process
// and the fault lab put the same object between their own.
//
// A worker obeys: the controller owns all accounting. It keeps the weights it was told to load,
// runs the steps of each pipeline in their order as plan and activations arrive, merges what is
// ready into one batch, forwards a step's plan before computing it (Orca section 4.2) and its
// activations afterwards. What names a pipeline that is gone is dropped and counted. When the
// session with the controller ends, every pipeline ends with it; weights stay for the next
// controller.
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

using ActivationBytes = std::shared_ptr<const std::vector<std::byte>>;

// What the body is to do; those that end with a result are answered by the method named.
struct SendUp {
  ToController message;
};
struct SendToPeer {
  WorkerAddress to;
  PeerMessage message;
};
struct SendActivations {  // activations of a step for the next hop
  WorkerAddress to;
  PipelineId pipeline;
  StepId step;
  bool decode = false;  // no prompt among them: may overtake those that have one
  ActivationBytes activations;
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
struct StartPipeline {  // -> PipelineStarted
  ShardId shard;
  PipelineId pipeline;
  engine::StagePipeline options;
};
struct DropPipeline {  // also ends what others pull from it and it pulls
  ShardId shard;
  PipelineId pipeline;
};
struct StartPull {  // -> PullEnded
  ShardId shard;
  LayerRange layers;  // the pipeline's, here
  PullKv pull;
};
struct Export {
  ShardId shard;
  LayerRange layers;
  ExportKv kv;
};
struct Unexport {
  KvHandle handle;
};
struct EndSession {  // and try again, unless `for_good`
  std::string reason;
  bool for_good = false;
};
using WorkerAction =
    std::variant<SendUp, SendToPeer, SendActivations, StartLoad, DropShard, AbortGroup,
                 StartPipeline, DropPipeline, StartPull, Export, Unexport, EndSession>;

struct WorkerCoreOptions {
  static constexpr size_t kShardsMax = 16;
  static constexpr size_t kPipelinesMax = 4096;
  static constexpr size_t kStepsWaitingMax = 64;  // of one pipeline: far more than it has hops

  Join join;  // as sent at the start of every session; `held` is filled in
};

struct WorkerCounters {
  uint64_t batches = 0, parts = 0;
  uint64_t stale_steps = 0, stale_activations = 0, stale_orders = 0;  // of pipelines that are gone
  uint64_t refused = 0;                                               // messages that broke a rule
};

// Steps that have all they need, of one shard.
struct ReadyBatch {
  struct Part {
    PipelineId pipeline;
    std::shared_ptr<const StepPlan> plan;
    ActivationBytes input;  // null at a pipeline's first hop
  };
  ShardId shard;
  std::vector<Part> parts;
};
struct PartOutput {
  std::vector<std::byte> activations;
  StepResult result;
};

class WorkerCore {
 public:
  explicit WorkerCore(WorkerCoreOptions options);

  // The session with a controller: up (says Join), down (every pipeline ends).
  void SessionUp(Time now);
  void SessionDown(Time now);
  void FromController(ToWorker message, Time now);
  void FromPeer(PeerMessage message, Time now);
  void ActivationsArrived(PipelineId pipeline, StepId step, ActivationBytes activations);
  // The connection to a peer is gone: pipelines that need it are broken.
  void PeerLost(Incarnation peer, const Status& reason);

  // Who it is to the next controller: one of another model must not take its shards for its own.
  void Identify(WorkerIdentity identity) { options_.join.identity = std::move(identity); }
  void LoadEnded(const ShardLoaded& loaded);
  void LoadProgress(const ShardProgress& progress);
  void PipelineStarted(PipelineId pipeline, const Status& status);
  void PullEnded(const PullDone& done);

  // What can run now, or nothing. One batch at a time.
  std::optional<ReadyBatch> NextBatch(Time now);
  // `outputs` by part. A failed part breaks its pipeline, a failed batch those of all its parts.
  void BatchEnded(const Status& status, std::vector<PartOutput> outputs, Time now);

  // A notice that this machine is about to go.
  void AnnounceLeaving(std::optional<Duration> in);
  Heartbeat MakeHeartbeat(Time now);

  // Actions since the last call, in order.
  void TakeActions(std::vector<WorkerAction>& actions);

  bool welcomed() const { return worker_.has_value(); }
  std::optional<WorkerId> worker() const { return worker_; }
  size_t pipelines() const { return pipelines_.size(); }
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
  struct Pipeline {
    OpenPipeline open;
    ShardId shard;
    bool started = false;
    bool broken = false;  // said so already
    bool failed = false;  // by what came or ran here, not by the loss of a peer
    std::deque<std::shared_ptr<const StepPlan>> steps;
    std::optional<StepId> newest;  // step that has arrived
    std::optional<StepId> taken;   // step that runs or has run
    std::map<StepId, ActivationBytes> inputs;
    std::unordered_set<SequenceId> known;  // to the stage, once the steps waiting have run
    uint64_t turn = 0;

    const PipelineHop& hop() const { return open.hops[static_cast<size_t>(open.hop)]; }
    bool first() const { return open.hop == 0; }
    bool last() const { return open.hop + 1 == static_cast<int>(open.hops.size()); }
  };

  void On(const Welcome& message, Time now);
  void On(const Refused& message, Time now);
  void On(LoadShard& message, Time now);
  void On(const UnloadShard& message, Time now);
  void On(OpenPipeline& message, Time now);
  void On(const ClosePipeline& message, Time now);
  void On(PipelineStep& message, Time now);
  void On(BatchOrder& message, Time now);
  void On(const ExportKv& message, Time now);
  void On(const ReleaseKv& message, Time now);
  void On(PullKv& message, Time now);
  void On(const Leave& message, Time now);

  Status CheckOpen(const OpenPipeline& message) const;
  Status CheckStep(Pipeline& pipeline, const StepPlan& plan);
  void Forward(const Pipeline& pipeline, const PipelineStep& step);
  void Break(PipelineId id, Pipeline& pipeline, const Status& reason,
             std::optional<WorkerId> suspect);
  void ErasePipeline(PipelineId id);
  void DropOrphans();
  bool HasNext(const Pipeline& pipeline) const;
  void FillByArrival(ShardId id, const Shard& shard, ReadyBatch& batch);
  bool FillByOrder(ShardId id, Shard& shard, ReadyBatch& batch);
  void Take(PipelineId id, Pipeline& pipeline, ReadyBatch& batch);
  void SendOutput(const Pipeline& pipeline, const ReadyBatch::Part& part, PartOutput& output);
  void Emit(WorkerAction action) { actions_.push_back(std::move(action)); }

  WorkerCoreOptions options_;
  std::optional<WorkerId> worker_;  // while a controller has welcomed us
  Term term_;                       // the highest seen
  Duration heartbeat_every_ = Duration::Seconds(0.25);
  std::map<ShardId, Shard> shards_;
  std::map<PipelineId, Pipeline> pipelines_;
  std::unordered_map<TransferId, PipelineId> pulls_;
  std::optional<ReadyBatch> running_;
  Time running_since_;
  uint64_t turns_ = 0;
  uint64_t heartbeats_ = 0;
  std::vector<WorkerAction> actions_;
  WorkerCounters counters_;
};

}  // namespace millrace::cluster
