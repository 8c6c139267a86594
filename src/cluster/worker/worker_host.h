// WorkerHost: runs a WorkerCore. It owns the core, the shards' stages and two threads. The caller
// provides the transport (WorkerLinks), so that a worker process and a worker inside the server's
// process use the same class.
//
// Threads: one runs batches, and opens and closes pipelines of the stages. One loads weights. The
// other work is short and runs on the callers' threads. The core's lock is never held while a batch
// runs or weights load, so heartbeats and aborts never wait for either. Any thread may call it.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "cluster/worker/worker_core.h"
#include "net/data/data_plane.h"
#include "stage/activation_caching_stage.h"

namespace millrace::cluster {

// The result of a loader for a LoadShard. `stage` is null if loading failed.
struct LoadedShard {
  std::shared_ptr<stage::Stage> stage;
  ShardLoaded facts;
  std::optional<WorkerIdentity> identity;  // set if the worker had none before this load
  // Ends waits for other ranks (net::Collective::Abort); empty for a stage with one rank.
  std::function<void(std::string_view why)> abort;
  std::function<bool()> waits;  // net::Collective::Waits; empty for a stage with one rank
};
// Called with numbers of bytes; `total` is 0 while it is not known. False: the shard is no longer
// wanted.
using ShardProgressFn = std::function<bool(int64_t done, int64_t total)>;
// Runs on the loading thread and may take minutes. `same` is a stage with the same weights, or null
// if there is none. With it, only the parts that belong to the stage's group (its collective) must
// be made again.
using ShardLoader =
    std::function<LoadedShard(const LoadShard& load, const std::shared_ptr<stage::Stage>& same,
                              const ShardProgressFn& progress)>;

// How the host sends messages and controls transfers. The functions must not block. They are called
// from any thread with the core's lock held, so they must not call back into the host.
struct WorkerLinks {
  std::function<void(ToController message)> send_up;
  std::function<void(const WorkerAddress& to, PeerMessage message)> send_to_peer;
  std::function<Status(const WorkerAddress& to, PipelineId pipeline, StepId step, bool decode,
                       ActivationBytes activations)>
      send_activations;
  std::function<void(ShardId shard, LayerRange layers, const std::shared_ptr<stage::Stage>& stage,
                     const PullKv& pull)>
      start_pull;  // -> PullEnded
  std::function<void(ShardId shard, LayerRange layers, const std::shared_ptr<stage::Stage>& stage,
                     const ExportKv& kv)>
      export_kv;
  std::function<void(const KvHandle& handle)> unexport_kv;
  std::function<void(const ProbeLink& probe)> start_probe;  // -> ProbeEnded
  // Ends the pulls from the pipeline and into it.
  std::function<void(PipelineId pipeline)> pipeline_closed;
  std::function<void(const std::string& reason, bool for_good)> end_session;
  // Runs on the computing thread, without the core's lock, after send_up got a batch's StepDone. It
  // may block. May be empty.
  std::function<void()> after_batch;
};

// What a worker's computing thread has been at since when.
struct ComputingSince {
  Time since;
  std::string what;  // "a batch of 3 steps, the first of pipeline 4 with id 17"
};

// As tools such as top show it.
inline constexpr char kComputeThreadName[] = "compute";

class WorkerHost {
 public:
  WorkerHost(WorkerCoreOptions options, ShardLoader loader, WorkerLinks links, const Clock& clock);
  ~WorkerHost();  // closes

  // Ends the running batch and joins the threads. Later calls do nothing, so links may still call
  // back while they are destroyed after this.
  void Close();

  // Any thread.
  void SessionUp();
  void SessionDown();
  void FromController(ToWorker message);
  void FromPeer(PeerMessage message);
  void ActivationsArrived(PipelineId pipeline, StepId step, ActivationBytes activations);
  void PeerLost(Incarnation peer, const Status& reason);
  void PullEnded(const PullDone& done);
  void ProbeEnded(const LinkProbed& probed);
  void SetProfile(WorkerProfile profile);
  void SetNotice(std::optional<MachineNotice> notice);  // `deadline` by this host's clock
  Heartbeat MakeHeartbeat();

  bool welcomed() const;
  bool left_on_notice() const;  // as of WorkerCore
  Duration heartbeat_every() const;
  Duration IdleFor() const;  // as of WorkerCore
  WorkerCounters counters() const;
  // Since when the computing thread has not ended what it does, or not taken up what there is to
  // do. nullopt: there is nothing.
  std::optional<ComputingSince> computing() const;
  size_t pipelines() const;

 private:
  struct RankGroup {  // as of LoadedShard
    std::function<void(std::string_view why)> abort;
    std::function<bool()> waits;
  };
  struct LoadJob {
    LoadShard load;
    std::shared_ptr<stage::Stage> same;  // kept alive: its shard may be dropped before the load
  };
  void Compute();
  void Load();
  void RunBatch(const ReadyBatch& batch) MR_REQUIRES(mutex_);
  void DoPipelineWork() MR_REQUIRES(mutex_);
  void Progress(std::string what) MR_REQUIRES(mutex_);
  // Performs the core's pending actions.
  void Flush() MR_REQUIRES(mutex_);
  void Do(SendUp& action) MR_REQUIRES(mutex_);
  void Do(SendToPeer& action) MR_REQUIRES(mutex_);
  void Do(SendActivations& action) MR_REQUIRES(mutex_);
  void Do(StartLoad& action) MR_REQUIRES(mutex_);
  void Do(DropShard& action) MR_REQUIRES(mutex_);
  void Do(AbortGroup& action) MR_REQUIRES(mutex_);
  void Do(StartPipeline& action) MR_REQUIRES(mutex_);
  void Do(DropPipeline& action) MR_REQUIRES(mutex_);
  void Do(ReturnMemory& action) MR_REQUIRES(mutex_);
  void Do(StartPull& action) MR_REQUIRES(mutex_);
  void Do(Export& action) MR_REQUIRES(mutex_);
  void Do(Unexport& action) MR_REQUIRES(mutex_);
  void Do(StartProbe& action) MR_REQUIRES(mutex_);
  void Do(UseTokenTable& action) MR_REQUIRES(mutex_);
  void Do(EndSession& action) MR_REQUIRES(mutex_);
  std::shared_ptr<stage::ActivationCachingStage> StageOf(ShardId shard) const MR_REQUIRES(mutex_);

  const Clock& clock_;
  const ShardLoader loader_;
  const WorkerLinks links_;

  mutable Mutex mutex_;
  CondVar compute_, load_;
  WorkerCore core_ MR_GUARDED_BY(mutex_);
  std::map<ShardId, std::shared_ptr<stage::ActivationCachingStage>> stages_ MR_GUARDED_BY(mutex_);
  std::map<ShardId, RankGroup> groups_ MR_GUARDED_BY(mutex_);      // of shards with several ranks
  std::shared_ptr<GrammarSource> grammars_ MR_GUARDED_BY(mutex_);  // null until there is a table
  // Work for the compute thread.
  std::deque<std::variant<StartPipeline, DropPipeline, DropShard>> pipeline_work_
      MR_GUARDED_BY(mutex_);
  std::deque<LoadJob> loads_ MR_GUARDED_BY(mutex_);
  size_t drops_ MR_GUARDED_BY(mutex_) = 0;  // DropShard in pipeline_work_: loads need their memory
  std::vector<WorkerAction> actions_ MR_GUARDED_BY(mutex_);
  std::vector<std::pair<Incarnation, Status>> lost_ MR_GUARDED_BY(mutex_);  // found during Flush
  bool flushing_ MR_GUARDED_BY(mutex_) = false;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;

  std::optional<Time> computing_since_ MR_GUARDED_BY(mutex_);
  std::string computing_ MR_GUARDED_BY(mutex_);  // what; empty: it has been woken

  std::thread compute_thread_, load_thread_;
};

}  // namespace millrace::cluster
