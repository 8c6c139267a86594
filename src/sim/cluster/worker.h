// ModelledWorker: a worker process whose stages compute by costs: the production WorkerCore, a
// MachineModel, loads and KV pulls that take time. Answers and activations are not computed; only
// their sizes travel. Destroying it is how its machine vanishes. Owned by ClusterSim. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <variant>
#include <vector>

#include "cluster/worker/worker_core.h"
#include "sim/cluster/machine.h"
#include "sim/fast/instance.h"

namespace millrace::sim {

// Activations of a step.
struct ActivationsSent {
  PipelineId pipeline;
  StepId step;
};
// A puller asks for tokens of `layers` under `handle`, and whether activations that entered
// `activations_at` are cached.
struct KvAsk {
  TransferId transfer;
  uint64_t part = 0;
  KvHandle handle;
  LayerRange layers;
  int first_token = 0, end_token = 0;
  std::optional<int> activations_at;
};
struct KvAnswer {
  TransferId transfer;
  uint64_t part = 0;
  Status status;
  double bytes = 0;
  bool activations = false;
};
using ToPeer = std::variant<PeerMessage, ActivationsSent, KvAsk, KvAnswer>;

enum class WorkerTimer : uint8_t { kLoaded, kBatchDone };

// What a worker may use of the simulation. `place` is the caller's.
class WorkerWorld {
 public:
  virtual ~WorkerWorld() = default;
  virtual Time now() const = 0;
  virtual void SendUp(int place, ToController message) = 0;
  // False: the peer is gone, or no link leads to it.
  virtual bool SendToPeer(int place, Incarnation to, ToPeer message, double bytes) = 0;
  virtual void After(int place, Duration delay, WorkerTimer timer, uint64_t x) = 0;
  // Its session with the controller ends: for good, or it joins again.
  virtual void EndSession(int place, bool for_good) = 0;
  virtual void BatchStarted(int place, const cost::BatchShape& shape, Time end) = 0;
  virtual void PullEnded(double seconds) = 0;
};

struct ModelledWorkerOptions {
  std::string name;
  int place = 0;
  Incarnation incarnation;
  const MachineModel* machine = nullptr;  // not owned
  Duration load_time;                     // of the first layers
  Duration change_load_time;              // at least, from time 0 on
  double activation_bytes_per_token = 0;
  double kv_bytes_per_token_layer = 0;
  int max_num_seqs = 0, max_num_batched_tokens = 0;  // of a full step
};

class ModelledWorker {
 public:
  ModelledWorker(ModelledWorkerOptions options, WorkerWorld& world);
  ModelledWorker(const ModelledWorker&) = delete;

  void Join();
  void Deliver(ToWorker message);
  void Deliver(Incarnation from, ToPeer message);
  void OnTimer(WorkerTimer timer, uint64_t x);
  void SetNotice(MachineNotice notice);
  // Another worker's machine vanished.
  void PeerGone(Incarnation peer);
  Heartbeat Beat() { return core_.MakeHeartbeat(world_.now()); }

  Incarnation incarnation() const { return options_.incarnation; }
  // Of the batches that have started here.
  const InstanceUse& use() const { return use_; }
  Duration busy() const { return busy_; }
  // When the running batch ends; before now if none runs.
  Time busy_until() const { return busy_until_; }

 private:
  struct Pull {
    Time started;
    std::map<uint64_t, Incarnation> asked;
    int64_t bytes = 0;
    bool activations = false;
  };
  struct Held {
    LayerRange layers;
    KvHandle handle;
    int tokens = 0;
    Time until;
  };
  struct Open {
    LayerRange layers;
    std::vector<int> cache_activations_at;
  };

  void Settle();
  void Do(cluster::SendUp& action);
  void Do(cluster::StartProbe&) {}     // no controller here asks for one
  void Do(cluster::UseTokenTable&) {}  // nor has one a tokenizer
  void Do(cluster::SendToPeer& action);
  void Do(cluster::SendActivations& action);
  void Do(cluster::StartLoad& action);
  void Do(cluster::StartPipeline& action);
  void Do(cluster::DropPipeline& action);
  void Do(cluster::StartPull& action);
  void Do(cluster::Export& action);
  void Do(cluster::EndSession& action);
  void Do(cluster::Unexport& action) { held_.erase(action.handle.generation); }
  // Nothing is modelled that they could free.
  void Do(cluster::DropShard& action) { loads_.erase(action.shard); }
  void Do(cluster::AbortGroup&) {}
  void Do(cluster::ReturnMemory&) {}  // the controller's accounts are what is simulated

  void StartBatch();
  void AddParts(const cluster::ReadyBatch::Part& part, std::vector<BatchPart>& parts);
  void EndBatch();
  void Count(const StepPlan& plan);
  void Answer(Incarnation to, const KvAsk& ask);
  void OnAnswer(const KvAnswer& answer);
  void EndPull(TransferId id, Status status);

  const ModelledWorkerOptions options_;
  WorkerWorld& world_;
  cluster::WorkerCore core_;
  std::map<ShardId, LayerRange> loads_;  // started and not dropped
  bool has_loaded_ = false;              // some layers
  std::map<PipelineId, Open> pipelines_;
  std::optional<cluster::ReadyBatch> batch_;
  std::vector<cluster::ReadyBatch::Part> ended_;  // parts whose outputs are being sent
  uint64_t batch_number_ = 0;
  std::vector<BatchPart> parts_;  // scratch
  std::map<TransferId, Pull> pulls_;
  uint64_t next_part_ = 1;
  std::unordered_map<uint64_t, Held> held_;  // by generation
  std::vector<cluster::WorkerAction> actions_;
  InstanceUse use_;
  Duration busy_;
  Time busy_until_;
};

}  // namespace millrace::sim
