// WorkerCore: the state machine of a worker. Messages, activations, ended batches and the time are
// its inputs; actions are its outputs. It has no threads, sockets, clocks or models, so that a
// worker process and the fault lab can use the same object.
//
// The controller decides, and it does all accounting. The worker keeps the weights that it
// was told to load and runs the steps of each pipeline in order, as plans and activations arrive.
// It merges ready steps into one batch. It forwards a step's plan before it computes the step
// (Orca, section 4.2), and the activations afterwards. Messages for a closed pipeline are dropped
// and counted. When the session with the controller ends, every pipeline ends with it; the weights
// stay for the next controller.
//
// The loop of a host (WorkerHost, which computes on a thread of its own, and the fault lab):
//
//   std::vector<WorkerAction> actions;
//   while (const Event event = Next()) {  // one at a time
//     const Time now = clock.Now();
//     switch (event.kind) {
//       case kSession: event.up ? core.SessionUp(now) : core.SessionDown(now); break;
//       case kFromController: core.FromController(event.message, now); break;
//       case kFromPeer: core.FromPeer(event.message, now); break;
//       case kActivations: core.ActivationsArrived(event.pipeline, event.step, event.data); break;
//       case kPeerLost: core.PeerLost(event.peer, event.reason); break;
//       case kDone: event.Tell(core); break;  // LoadEnded, PullEnded, PipelineStarted, ProbeEnded
//       case kBatchEnded: core.BatchEnded(event.status, event.outputs, now); break;
//     }
//     std::optional<ReadyBatch> batch = core.NextBatch(now);  // if none is running
//     if (batch) Compute(*batch);                             // -> kBatchEnded
//     core.TakeActions(actions);
//     for (WorkerAction& action : std::exchange(actions, {})) Do(action);  // in this order
//   }
//
// Owned by its host (WorkerHost), whose lock guards it: one thread at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/worker/worker_shards.h"
#include "core/sequence_tables.h"
#include "core/step_checker.h"
#include "core/worker_messages.h"
#include "stage/stage.h"

namespace millrace::cluster {

using ActivationBytes = std::shared_ptr<const std::vector<std::byte>>;

// Actions for the host. Where an action has a result, "->" names the method that the host calls
// with it.
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
  bool decode = false;  // no prompt tokens: may overtake activations of prompts
  ActivationBytes activations;
};
struct StartLoad {  // -> LoadEnded
  LoadShard load;
  std::optional<ShardId> same_as;  // a loaded shard with the same weights: only the group is new
};
struct DropShard {
  ShardId shard;
};
struct AbortGroup {  // the shard's ranks wait for a batch that cannot run here: abort their group
  ShardId shard;
  std::string reason;
};
struct StartPipeline {  // -> PipelineStarted
  ShardId shard;
  PipelineId pipeline;
  stage::StagePipeline options;
};
struct DropPipeline {  // also ends the pulls from it and into it
  ShardId shard;
  PipelineId pipeline;
};
// At once: a pull that is started later may write to the blocks.
struct ReturnMemory {
  ShardId shard;
  PipelineId pipeline;
  std::vector<BlockIndex> blocks;
};
struct StartPull {  // -> PullEnded
  ShardId shard;
  LayerRange layers;  // of the pipeline, on this worker
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
struct StartProbe {  // -> ProbeEnded
  ProbeLink probe;
};
struct UseTokenTable {  // for the pipelines that start from now on
  TokenTable table;
};
struct EndSession {  // and join again, unless `for_good`
  std::string reason;
  bool for_good = false;
};
using WorkerAction = std::variant<SendUp, SendToPeer, SendActivations, StartLoad, DropShard,
                                  AbortGroup, StartPipeline, DropPipeline, ReturnMemory, StartPull,
                                  Export, Unexport, StartProbe, UseTokenTable, EndSession>;

struct WorkerCoreOptions {
  static constexpr size_t kShardsMax = 16;
  // Two leases of a leader. Only one that holds its lease greets workers, so one that goes on
  // greeting them leads a store that was restored from a backup.
  static constexpr Duration kOlderTermLimit = Duration::Seconds(10);
  static constexpr size_t kPipelinesMax = 4096;
  static constexpr size_t kStepsWaitingMax = 64;  // for one pipeline: far more than its hops

  Join join;  // sent at the start of every session; `held` is filled in
};

struct WorkerCounters {
  uint64_t batches = 0, parts = 0;
  // Repeated messages, and messages for pipelines that are closed or broken.
  uint64_t stale_steps = 0, stale_activations = 0, stale_orders = 0;
  uint64_t refused = 0;        // messages that violated the protocol
  uint64_t refused_plans = 0;  // those of them that were unsound plans (StepChecker)
};

// Steps of one shard that are ready to run.
struct ReadyBatch {
  struct Part {
    PipelineId pipeline;
    std::shared_ptr<const StepPlan> plan;
    // Its views are valid until the batch has ended.
    std::shared_ptr<const SequenceTables> tables;
    std::span<const SequenceView> sequences;
    ActivationBytes input;  // null at a pipeline's first hop

    stage::StagePart AsStagePart() const;  // valid as long as this part
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

  // A session with a controller begins (the worker sends Join) or ends (with every pipeline).
  void SessionUp(Time now);
  void SessionDown(Time now);
  void FromController(ToWorker message, Time now);
  void FromPeer(PeerMessage message, Time now);
  void ActivationsArrived(PipelineId pipeline, StepId step, ActivationBytes activations);
  // The connection to a peer is lost: pipelines that use the peer are broken.
  void PeerLost(Incarnation peer, const Status& reason);

  // Sets the identity that the next Join sends. With it, a controller of another model does not use
  // this worker's shards.
  void Identify(WorkerIdentity identity) { options_.join.identity = std::move(identity); }
  // `limits`: the loaded stage's.
  void LoadEnded(const ShardLoaded& loaded, const stage::StageLimits& limits);
  void LoadProgress(const ShardProgress& progress);
  void PipelineStarted(PipelineId pipeline, const Status& status);
  void PullEnded(const PullDone& done);
  void ProbeEnded(const LinkProbed& probed);
  // The worker's profile from now on: for this controller and for later ones.
  void SetProfile(WorkerProfile profile);

  // The steps that can run now; nullopt: none. REQUIRES: no batch is running.
  std::optional<ReadyBatch> NextBatch(Time now);
  // `outputs` by part. A failed part breaks its pipeline. A failed batch breaks the pipelines of
  // all its parts.
  void BatchEnded(const Status& status, std::vector<PartOutput> outputs, Time now);

  // The notice that holds for this machine from now on; nullopt: none. The controller is told, and
  // those of later sessions. After a hard one it moves this worker's requests and lets it go.
  void SetNotice(std::optional<MachineNotice> notice, Time now);
  Heartbeat MakeHeartbeat(Time now);
  // How long this worker has had nothing to compute; zero while a batch runs or steps wait.
  Duration IdleFor(Time now) const;

  // Actions since the last call, in order.
  void TakeActions(std::vector<WorkerAction>& actions);

  bool welcomed() const { return worker_.has_value(); }
  // Whether the controller let it go because of its notice, and for no other reason.
  bool left_on_notice() const { return left_on_notice_; }
  std::optional<WorkerId> worker() const { return worker_; }
  size_t pipelines() const { return pipelines_.size(); }
  size_t shards() const { return shards_.size(); }
  size_t orphans() const { return shards_.orphans(); }
  // Whether the load of this shard should continue. False for a tensor-parallel shard of an earlier
  // session, because its group no longer exists.
  bool wants(ShardId shard) const { return shards_.Wants(shard); }
  bool batch_running() const { return running_.has_value(); }
  const WorkerCounters& counters() const { return counters_; }
  Duration heartbeat_every() const { return heartbeat_every_; }

 private:
  struct Pipeline {
    Pipeline(OpenPipeline opened, const StepLimits& limits)
        : open(std::move(opened)),
          shard(hop().shards[static_cast<size_t>(open.rank)]),
          checker(limits) {}

    OpenPipeline open;
    ShardId shard;
    bool started = false;
    bool broken = false;  // and the controller was told
    bool failed = false;  // broken by a message or a step here, not by the loss of a peer
    std::deque<std::shared_ptr<const StepPlan>> steps;
    std::optional<StepId> newest;  // the newest step that has arrived
    std::optional<StepId> taken;   // the newest step that runs or has run
    std::map<StepId, ActivationBytes> inputs;
    StepChecker checker;  // of plans as they arrive
    std::shared_ptr<SequenceTables> tables = std::make_shared<SequenceTables>();  // as steps run
    uint64_t returns = 0;  // ReturnBlocks that have arrived
    // Steps that came before the ReturnBlocks that they follow, with the number of these.
    std::map<StepId, uint64_t> early;
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
  void On(ReturnBlocks& message, Time now);
  void On(const ExportKv& message, Time now);
  void On(const ReleaseKv& message, Time now);
  void On(PullKv& message, Time now);
  void On(const ProbeLink& message, Time now);
  void On(const TokenTable& message, Time now);
  void On(const Leave& message, Time now);

  void SayNotice(Time now);
  Status CheckOpen(const OpenPipeline& message) const;
  // In which order plans may arrive, and what they may name.
  Status CheckStep(Pipeline& pipeline, const StepPlan& plan);
  StepLimits LimitsOf(const OpenPipeline& message) const;
  void Forward(const Pipeline& pipeline, const PipelineStep& step);
  void Break(PipelineId id, Pipeline& pipeline, const Status& reason,
             std::optional<WorkerId> suspect);
  bool IsOutdated(const Welcome& message, Time now);
  void ErasePipeline(PipelineId id);
  void DropOrphans(bool used_too = false);  // used: those that a load in progress can keep part of
  bool HasNext(const Pipeline& pipeline) const;
  void FillByArrival(ShardId id, const WorkerShards::Shard& shard, ReadyBatch& batch);
  bool FillByOrder(ShardId id, WorkerShards::Shard& shard, ReadyBatch& batch);
  void Take(PipelineId id, Pipeline& pipeline, ReadyBatch& batch);
  void PassTest(PipelineId id, Pipeline& pipeline);
  void SendOutput(const Pipeline& pipeline, const ReadyBatch::Part& part, PartOutput& output);
  void Emit(WorkerAction action) { actions_.push_back(std::move(action)); }

  WorkerCoreOptions options_;
  std::optional<WorkerId> worker_;    // set from Welcome to the end of the session
  Term term_;                         // the highest one seen in `store_`
  std::optional<std::string> store_;  // of the controller whose term this is
  std::optional<Time> older_since_;   // when a controller with an older term was first met
  Duration heartbeat_every_ = Duration::Seconds(0.25);
  // Whether the last controller speaks kProtocolProfiles, kProtocolNotices.
  bool takes_profiles_ = false, takes_notices_ = false;
  std::optional<WorkerProfile> profile_;
  std::optional<MachineNotice> notice_;  // told again in the next session
  bool left_on_notice_ = false;
  WorkerShards shards_;
  std::map<PipelineId, Pipeline> pipelines_;
  std::unordered_map<TransferId, PipelineId> pulls_;
  std::optional<ReadyBatch> running_;
  Time running_since_;
  Time last_busy_;  // when a batch last ended, a pipeline was opened, or a session began
  uint64_t turns_ = 0;
  uint64_t heartbeats_ = 0;
  std::vector<WorkerAction> actions_;
  WorkerCounters counters_;
};

}  // namespace millrace::cluster
