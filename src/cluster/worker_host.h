// WorkerHost: the threads around a WorkerCore. It owns the shards' stages and runs their batches;
// how messages travel is handed in, so that a worker process and a worker inside the server's own
// process are the same object.
//
// Threads: one computes (and opens and closes pipelines, which is the stage's business), one loads
// weights. Everything else happens on the callers' threads and is quick: the core's lock is never
// held while a batch runs or weights load, so heartbeats and aborts never wait for either.
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
#include "cluster/worker_core.h"
#include "engine/activation_caching_stage.h"
#include "net/data_plane.h"

namespace millrace::cluster {

// What a loader makes of a LoadShard. `stage` is null when loading failed.
struct LoadedShard {
  std::shared_ptr<engine::Stage> stage;
  ShardLoaded facts;
  std::optional<WorkerIdentity> identity;  // where the worker had none before it loaded
  // Ends what waits for other ranks (net::Collective::Abort); empty for a stage of one.
  std::function<void(std::string_view why)> abort;
};
// Bytes; `total` is 0 while nothing is known yet. False: the shard is not wanted any more.
using ShardProgressFn = std::function<bool(int64_t done, int64_t total)>;
// On the loading thread; may take minutes. `same` is a shard with the same weights, when there is
// one: only what belongs to the stage's group (its collective) need be made anew.
using ShardLoader =
    std::function<LoadedShard(const LoadShard& load, const std::shared_ptr<engine::Stage>& same,
                              const ShardProgressFn& progress)>;

// How the host reaches others. None may wait; all may be called from any thread, with the core's
// lock held, so they must not call back into the host.
struct WorkerLinks {
  std::function<void(ToController message)> send_up;
  std::function<void(const WorkerAddress& to, PeerMessage message)> send_to_peer;
  std::function<Status(const WorkerAddress& to, PipelineId pipeline, StepId step, bool decode,
                       ActivationBytes activations)>
      send_activations;
  std::function<void(ShardId shard, LayerRange layers, const std::shared_ptr<engine::Stage>& stage,
                     const PullKv& pull)>
      start_pull;  // -> PullEnded
  std::function<void(ShardId shard, LayerRange layers, const std::shared_ptr<engine::Stage>& stage,
                     const ExportKv& expose)>
      expose;
  std::function<void(const KvHandle& handle)> unexpose;
  std::function<void(PipelineId pipeline)>
      pipeline_closed;  // what is pulled from it or into it ends
  std::function<void(const std::string& reason, bool for_good)> end_session;
  // On the computing thread, without the core's lock, after a batch's StepDone was given to
  // send_up. May take its time. May be empty.
  std::function<void()> after_batch;
};

class WorkerHost {
 public:
  WorkerHost(WorkerCoreOptions options, ShardLoader loader, WorkerLinks links, const Clock& clock);
  ~WorkerHost();  // closes

  // Ends the batch that runs and joins the threads. What is asked of it afterwards is ignored, so
  // that links may be taken away next and still call back meanwhile.
  void Close();

  // Any thread.
  void SessionUp();
  void SessionDown();
  void FromController(ToWorker message);
  void FromPeer(PeerMessage message);
  void ActivationsArrived(PipelineId pipeline, StepId step, ActivationBytes activations);
  void PeerLost(Incarnation peer, const Status& reason);
  void PullEnded(const PullDone& done);
  void AnnounceLeaving(std::optional<Duration> in);
  Heartbeat MakeHeartbeat();

  bool welcomed() const;
  Duration heartbeat_every() const;
  WorkerCounters counters() const;
  size_t pipelines() const;

 private:
  struct LoadJob {
    LoadShard load;
    std::shared_ptr<engine::Stage> same;  // held: it may be dropped before its turn
  };
  void Compute();
  void Load();
  void RunBatch(const ReadyBatch& batch) MR_REQUIRES(mutex_);
  void DoPipelineWork() MR_REQUIRES(mutex_);
  // Does what the core asks for.
  void Flush() MR_REQUIRES(mutex_);
  void Do(SendUp& action) MR_REQUIRES(mutex_);
  void Do(SendToPeer& action) MR_REQUIRES(mutex_);
  void Do(SendActivations& action) MR_REQUIRES(mutex_);
  void Do(StartLoad& action) MR_REQUIRES(mutex_);
  void Do(DropShard& action) MR_REQUIRES(mutex_);
  void Do(AbortGroup& action) MR_REQUIRES(mutex_);
  void Do(StartPipeline& action) MR_REQUIRES(mutex_);
  void Do(DropPipeline& action) MR_REQUIRES(mutex_);
  void Do(StartPull& action) MR_REQUIRES(mutex_);
  void Do(Export& action) MR_REQUIRES(mutex_);
  void Do(Unexport& action) MR_REQUIRES(mutex_);
  void Do(EndSession& action) MR_REQUIRES(mutex_);
  std::shared_ptr<engine::ActivationCachingStage> StageOf(ShardId shard) const MR_REQUIRES(mutex_);

  const Clock& clock_;
  const ShardLoader loader_;
  const WorkerLinks links_;

  mutable Mutex mutex_;
  CondVar compute_, load_;
  WorkerCore core_ MR_GUARDED_BY(mutex_);
  std::map<ShardId, std::shared_ptr<engine::ActivationCachingStage>> stages_ MR_GUARDED_BY(mutex_);
  std::map<ShardId, std::function<void(std::string_view)>> aborts_ MR_GUARDED_BY(mutex_);
  // The compute thread's.
  std::deque<std::variant<StartPipeline, DropPipeline, DropShard>> pipeline_work_
      MR_GUARDED_BY(mutex_);
  std::deque<LoadJob> loads_ MR_GUARDED_BY(mutex_);
  std::vector<WorkerAction> actions_ MR_GUARDED_BY(mutex_);
  std::vector<std::pair<Incarnation, Status>> lost_ MR_GUARDED_BY(mutex_);  // found while flushing
  bool flushing_ MR_GUARDED_BY(mutex_) = false;
  bool stopping_ MR_GUARDED_BY(mutex_) = false;

  std::thread compute_thread_, load_thread_;
};

}  // namespace millrace::cluster
